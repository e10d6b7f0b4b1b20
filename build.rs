//! Compiles ONNX's schema to Rust: protox reads it (no protoc needed), prost-build writes the code.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=src/onnx/onnx.proto");
    let schema = protox::compile(["src/onnx/onnx.proto"], ["src/onnx"])?;
    prost_build::Config::new()
        // Boxed, so that an attribute, of which a model has thousands, stays small.
        .boxed(".onnx.AttributeProto.t")
        .compile_fds(schema)?;
    Ok(())
}
