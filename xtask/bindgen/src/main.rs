//! `xtask-bindgen MODULE.wasm OUT_DIR NAME`: writes `NAME.js`, `NAME.d.ts` and `NAME_bg.wasm` into
//! OUT_DIR. `cargo xtask build` runs it; nothing else should need to.

use anyhow::{Context, Result, bail};
use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [module, out, name] = args.as_slice() else {
        bail!("usage: xtask-bindgen MODULE.wasm OUT_DIR NAME");
    };
    // "web" is the one target whose output is a plain ES module that loads nothing by itself, so the
    // same file serves browsers and Node. Names stay until wasm-opt has run: it reports them.
    Bindgen::new()
        .input_path(module)
        .web(true)?
        .out_name(name)
        .typescript(true)
        .generate(out)
        .with_context(|| format!("wasm-bindgen on {module}"))
}
