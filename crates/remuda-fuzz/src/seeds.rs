//! The inputs that each target starts from: fixtures of the repository, and small files made here.

mod model_files;

pub(crate) use self::model_files::{gguf_files, onnx_files, safetensors_files};

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub(crate) fn workflows() -> Vec<Vec<u8>> {
    texts(&[
        include_str!("../../../examples/hello.json"),
        include_str!("../../remuda/tests/it/clients/default_workflow_api.json"),
        include_str!("../../remuda/tests/it/clients/sdxl.json"),
        // Wrapped, with wanted outputs and a key that must not be stored.
        r#"{"prompt":{"1":{"class_type":"LoadImage","inputs":{"image":"blake3:0000"},"_meta":{"title":"in"}},
            "2":{"class_type":"SaveImage","inputs":{"images":["1",0],"filename_prefix":"a/b"}}},
            "partial_execution_targets":["2"],"extra_data":{"api_key_comfy_org":"k","extra_pnginfo":{}}}"#,
        // A loop, and a link to nowhere.
        r#"{"1":{"class_type":"A","inputs":{"x":["2",0],"y":["9",1]}},"2":{"class_type":"B","inputs":{"x":["1",0]}}}"#,
        r#"{"model":"llama","messages":[{"role":"user","content":"\ud83d\udc0e 1e400 -0.0"}],"seed":1e-7}"#,
        r#"{"a":1,"a":2,"b":{"c":[[[[1.0,1,10e0,"\u0000"]]]]}}"#,
    ])
}

pub(crate) fn wire_messages() -> Vec<Vec<u8>> {
    const JOB: &str = "00000000-0000-0000-0000-000000000002";
    let join = r#"{"worker":"w","services":["exec"],"slots":2,"offer":{},"nonce":"n","process":"p","join_number":1}"#;
    let started = format!(
        r#"{{"incarnation":1,"seq":2,"term":1,"held":[{{"job":"{JOB}","attempt":1,"progress":0.5,"step":3,"phase":"x"}}]}}"#
    );
    let done = format!(
        r#"{{"incarnation":1,"seq":3,"term":1,"slots":9,"finished":[{{"job":"{JOB}","attempt":1,"outcome":"completed","result":{{}}}}]}}"#
    );
    let failed = format!(
        r#"{{"incarnation":1,"seq":3,"term":1,"draining":true,"metrics":{{"gpu":1}},"finished":[{{"job":"{JOB}","attempt":1,"outcome":"failed","cause":"job","message":"m"}}]}}"#
    );
    let idle = r#"{"incarnation":1,"seq":1,"term":1,"unavailable_reason":"x","check":{"passed":true},"service_restarts":1}"#;
    let live = r#"{"progress":{"value":0.4,"nodes_done":2,"nodes_total":5,"message":"KSampler 8/20"},"messages":[{}]}"#;
    let again = r#"{"worker":"w","services":["exec"],"incarnation":9223372036854775806,"join_number":2,"process":"p"}"#;
    let first = r#"{"incarnation":1,"seq":1,"term":1}"#;
    [
        [join, first, &started, live, &done].join("\n"),
        [join, first, &started, &failed].join("\n"),
        [join, idle, again, first].join("\n"),
    ]
    .map(String::into_bytes)
    .into()
}

pub(crate) fn comfyui_texts() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"type":"status","data":{"status":{"exec_info":{"queue_remaining":1}},"sid":"s"}}
{"type":"execution_start","data":{"prompt_id":"p","timestamp":1}}
{"type":"execution_cached","data":{"nodes":["1"],"prompt_id":"p"}}
{"type":"executing","data":{"node":"2","display_node":"2","prompt_id":"p"}}
{"type":"progress","data":{"value":1,"max":20,"prompt_id":"p","node":"2"}}
{"type":"progress_state","data":{"prompt_id":"p","nodes":{"2":{"value":3,"max":20,"state":"running"}}}}
{"type":"executed","data":{"node":"3","output":{"images":[{"filename":"a.png"}],"score":[NaN]},"prompt_id":"p"}}
{"type":"execution_success","data":{"prompt_id":"p"}}
{"type":"executing","data":{"node":null,"prompt_id":"p"}}"#,
        r#"{"type":"execution_error","data":{"prompt_id":"p","node_id":"3","node_type":"SaveImage","exception_type":"ExecutionBlocked","exception_message":"m"}}
{"type":"execution_interrupted","data":{"prompt_id":"p"}}"#,
        r#"{"value":[-Infinity,Infinity,"NaN","\ud800\n"],"n":-0.0}"#,
        "[1,2.5,\"\\ud83d\\udc0e\",null]",
    ])
}

pub(crate) fn comfyui_frames() -> Vec<Vec<u8>> {
    let number = |value: u32| value.to_be_bytes().to_vec();
    let about = br#"{"prompt_id":"p","node_id":"2","image_type":"image/png"}"#.to_vec();
    let length = |bytes: &[u8]| number(u32::try_from(bytes.len()).unwrap_or(0));
    vec![
        [number(1), number(1), vec![0xff, 0xd8, 0xff, 0xe0]].concat(),
        [number(4), length(&about), about, b"\x89PNG\r\n".to_vec()].concat(),
        [number(3), number(1), b"2".to_vec(), "half way".as_bytes().to_vec()].concat(),
        number(9),
    ]
}

pub(crate) fn configurations() -> Vec<Vec<u8>> {
    texts(&[
        r#"listen = "127.0.0.1:8288"
data = "d"
retention = "30d"
store = "sqlite:x"
beat.idle = "20s"

[scaling]
machines_min = 0
machines_max = 4
"#,
        r#"[[fleet]]
name = "a"
provider = "process"
machines_max = 2
command = ["true"]

[[model]]
name = "m"
path = "model.gguf"
copies = 2

[[tenant]]
name = "t"
open_jobs_max = 10
"#,
        r#"[[fleet]]
name = "r"
provider = "runpod"
gpus = ["NVIDIA L4"]
image = "i"
hourly_budget = "1.50"
"#,
    ])
}
