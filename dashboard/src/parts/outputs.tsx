// Pictures, videos, sounds and other files of a result. Each is fetched with the token when it is shown.

import { useEffect, useState } from "preact/hooks";
import { request } from "../api";

export interface OutputFile {
  hash: string;
  name: string;
  kind: "image" | "video" | "audio" | "other";
}

const BLOB = /^blake3:[0-9a-f]{64}$/;
const KINDS: [OutputFile["kind"], RegExp][] = [
  ["image", /\.(png|jpe?g|webp|gif|avif|bmp)$/i],
  ["video", /\.(mp4|webm|mov|mkv)$/i],
  ["audio", /\.(mp3|wav|flac|ogg|opus|m4a)$/i],
];
/** More would fill the memory of a phone; the raw result has all. */
const FILES_MAX = 40;

/** Every blob that a result names, with the file name beside it. */
export function findFiles(value: unknown): OutputFile[] {
  const found = new Map<string, OutputFile>();
  const visit = (node: unknown, name: string) => {
    if (found.size >= FILES_MAX) return;
    if (typeof node === "string" && BLOB.test(node)) {
      if (!found.has(node)) found.set(node, { hash: node, name, kind: kindOf(name) });
    } else if (Array.isArray(node)) node.forEach((one) => visit(one, name));
    else if (node && typeof node === "object") {
      const object = node as Record<string, unknown>;
      const own = [object.filename, object.name, object.file].find((one): one is string => typeof one === "string");
      for (const [key, one] of Object.entries(object)) visit(one, own ?? (/\.\w+$/.test(key) ? key : name));
    }
  };
  visit(value, "file");
  return [...found.values()];
}

function kindOf(name: string): OutputFile["kind"] {
  return KINDS.find(([, ending]) => ending.test(name))?.[0] ?? "other";
}

export function Outputs({ files }: { files: OutputFile[] }) {
  return (
    <div class="outputs">
      {files.map((file) => (
        <Output key={file.hash} file={file} />
      ))}
    </div>
  );
}

function Output({ file }: { file: OutputFile }) {
  const [url, setUrl] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const address = `/remuda/v1/blobs/${file.hash}?name=${encodeURIComponent(file.name)}`;
  const load = async () => {
    try {
      const blob = await (await request(address)).blob();
      const made = URL.createObjectURL(blob);
      setUrl(made);
      return made;
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      return null;
    }
  };
  useEffect(() => {
    let made: string | null = null;
    if (file.kind === "image") void load().then((url) => (made = url));
    return () => {
      if (made) URL.revokeObjectURL(made);
    };
  }, [file.hash]);
  const download = async () => {
    const made = url ?? (await load());
    if (!made) return;
    const anchor = document.createElement("a");
    anchor.href = made;
    anchor.download = file.name;
    anchor.click();
  };
  return (
    <figure>
      {problem && <p class="problem">{problem}</p>}
      {file.kind === "image" && (url ? <img src={url} alt={`output ${file.name}`} /> : <div class="ghost picture" />)}
      {file.kind === "video" && url && <video src={url} controls />}
      {file.kind === "audio" && url && <audio src={url} controls />}
      {(file.kind === "video" || file.kind === "audio") && !url && (
        <button type="button" onClick={() => void load()}>
          Play {file.name}
        </button>
      )}
      <figcaption>
        <span>{file.name}</span>
        <button type="button" class="plain" onClick={() => void download()}>
          download
        </button>
      </figcaption>
    </figure>
  );
}
