import { defineConfig } from "vite";

// `npm run dev` serves the page at http://127.0.0.1:5173/remuda/ and passes everything else on to a running plane.
const plane = process.env.REMUDA_URL ?? "http://127.0.0.1:8288";

export default defineConfig({
  base: "/remuda/",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "dist",
    // One script and one style: the page is small, and every further file would be one more request.
    cssCodeSplit: false,
    modulePreload: false,
    assetsInlineLimit: 0,
    target: "es2022",
  },
  server: {
    host: "127.0.0.1",
    proxy: {
      "/remuda/v1": { target: plane, changeOrigin: true, headers: { origin: plane } },
    },
  },
});
