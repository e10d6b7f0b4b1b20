//! Compute pipelines, one for each shader text.

use super::device::{Shared, count, lock};
use super::shader::Dispatch;
use crate::error::{Result, err};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A compiled shader.
pub(super) struct Pipeline {
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
}

/// The pipelines of a device, by text.
#[derive(Default)]
pub(super) struct Pipelines {
    known: Mutex<HashMap<String, Arc<Pipeline>>>,
}

impl Shared {
    /// The pipeline of a dispatch. `Device` error with the compiler's words if the text does not compile.
    pub(super) async fn pipeline(&self, dispatch: &Dispatch) -> Result<Arc<Pipeline>> {
        if let Some(known) = lock(&self.pipelines.known).get(&dispatch.source) {
            return Ok(known.clone());
        }
        let made = self.compile_texts(&[dispatch]).await?;
        Ok(made[0].clone())
    }

    /// Makes the pipelines of all dispatches, so that the driver can compile them side by side. If one is refused none is kept, and
    /// [`Self::pipeline`] will tell which.
    pub(super) async fn prepare_pipelines<'a>(&self, dispatches: impl Iterator<Item = &'a Dispatch>) {
        let mut new: Vec<&Dispatch> = Vec::new();
        for dispatch in dispatches {
            let known = lock(&self.pipelines.known).contains_key(&dispatch.source);
            if !known && !new.iter().any(|d| d.source == dispatch.source) {
                new.push(dispatch);
            }
        }
        let _ = self.compile_texts(&new).await;
    }

    async fn compile_texts(&self, dispatches: &[&Dispatch]) -> Result<Vec<Arc<Pipeline>>> {
        let invalid = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let made: Vec<Arc<Pipeline>> = dispatches.iter().map(|d| self.compile_text(d)).collect();
        // Both pops take effect now, whenever their answers come.
        let (internal, invalid) = (internal.pop(), invalid.pop());
        let (internal, invalid) = (internal.await, invalid.await);
        if let Some(error) = internal.or(invalid) {
            return Err(err!(Device, "the GPU's compiler refuses a kernel: {error}"));
        }
        count(&self.made.pipelines, made.len());
        let mut known = lock(&self.pipelines.known);
        known.extend(dispatches.iter().map(|d| d.source.clone()).zip(made.iter().cloned()));
        Ok(made)
    }

    fn compile_text(&self, dispatch: &Dispatch) -> Arc<Pipeline> {
        let buffer = |binding: usize, ty| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        };
        let mut entries = vec![buffer(0, wgpu::BufferBindingType::Uniform)];
        for (i, (_, written)) in dispatch.slots.iter().enumerate() {
            entries.push(buffer(i + 1, wgpu::BufferBindingType::Storage { read_only: !written }));
        }
        let layout =
            self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries });
        let all = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(dispatch.source.as_str().into()),
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: Some(&all),
            module: &module,
            entry_point: Some("main"),
            // Scratch in workgroup memory is written before it is read.
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        #[allow(clippy::arc_with_non_send_sync, reason = "as in device.rs")]
        Arc::new(Pipeline { pipeline, layout })
    }
}

#[cfg(test)]
mod tests {
    use crate::backend::now;
    use crate::backend::webgpu::WebGpu;
    use crate::backend::webgpu::shader::Dispatch;
    use crate::error::Kind;

    /// An error with the compiler's words; the device goes on.
    #[test]
    fn a_text_that_does_not_compile() {
        let Ok(gpu) = now(WebGpu::open()) else { return };
        for source in ["fn main() { no_such_function(); }", "not WGSL", "@compute @workgroup_size(1) fn other() {}"] {
            let source = source.to_owned();
            let dispatch = Dispatch { source, params: Vec::new(), slots: Vec::new(), groups: [1, 1] };
            let error = now(gpu.stream.pipeline(&dispatch)).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), Kind::Device);
            assert!(error.to_string().contains("refuses a kernel"), "{error}");
            gpu.stream.check().unwrap();
        }
        assert_eq!(gpu.counters().pipelines, 0);
    }
}
