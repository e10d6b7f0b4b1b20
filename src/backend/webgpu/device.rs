//! The device: adapter, limits, errors, and commands on their way to the queue.

use super::layout::storage;
use super::pipelines::Pipelines;
use super::status::Checks;
use super::stream::Stream;
use crate::error::{Kind, Result, bail, err};
use crate::plan::Layout;
use crate::tensor::DType;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The most bytes of one GPU buffer that are used, whatever the adapter offers: positions in it fit 32 bits on every side.
const MOST_BYTES: u64 = 1 << 30;

/// What to ask of the GPU.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Store float16 tensors as two bytes where the adapter has `shader-f16`? Otherwise, as on adapters without, each takes
    /// four bytes, with the same values.
    pub f16: bool,
    /// Use the kernels for software on a CPU, or those for a GPU? `None`: what the adapter is.
    pub software: Option<bool>,
    /// The most bytes of one GPU buffer, if less than the adapter offers. Temporaries of a step may lie in several.
    pub largest_buffer: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { f16: true, software: None, largest_buffer: usize::MAX }
    }
}

/// What the device has been asked to make and do, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// GPU buffers made.
    pub buffers: usize,
    /// Bind groups made.
    pub bind_groups: usize,
    /// Compute pipelines made.
    pub pipelines: usize,
    /// Command submissions.
    pub submissions: usize,
    /// Buffers mapped to be read.
    pub maps: usize,
    /// Kernel launches.
    pub dispatches: usize,
}

/// The GPU. A clone is the same device with a stream of commands of its own, so that an error is told to those who caused it: a
/// module and its optimizer work on one handle, other modules on clones.
pub struct WebGpu {
    pub(super) stream: Arc<Stream>,
}

impl Clone for WebGpu {
    fn clone(&self) -> Self {
        Self::on(self.stream.shared.clone())
    }
}

/// What all handles of a device share.
pub(super) struct Shared {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) pipelines: Pipelines,
    pub(super) checks: Mutex<Checks>,
    /// A buffer to read through, kept for the next time.
    pub(super) readback: Mutex<Option<wgpu::Buffer>>,
    pub(super) halves: bool,
    pub(super) software: bool,
    adapter: String,
    piece: usize,
    /// Storage buffers that a kernel can bind.
    pub(super) bindings: usize,
    /// The number of the next submission.
    batches: AtomicU64,
    trouble: Arc<Mutex<Option<Trouble>>>,
    pub(super) made: Made,
}

/// Counters in the making.
#[derive(Default)]
pub(super) struct Made {
    pub(super) buffers: AtomicUsize,
    pub(super) bind_groups: AtomicUsize,
    pub(super) pipelines: AtomicUsize,
    pub(super) submissions: AtomicUsize,
    pub(super) maps: AtomicUsize,
    pub(super) dispatches: AtomicUsize,
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicUsize, n: usize) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// What went wrong outside of any call.
#[derive(Clone)]
enum Trouble {
    /// The device is gone, for good.
    Lost(String),
    /// A call failed.
    Failed(String),
}

/// A lock, also one that a panicking thread has left.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl WebGpu {
    /// The fastest adapter of this machine, or in a browser the one that it offers.
    ///
    /// # Errors
    /// `Device` if there is none, or if it is too small (see WebGPU's default limits).
    pub async fn open() -> Result<Self> {
        Self::open_with(Options::default()).await
    }

    /// As [`Self::open`], with options.
    pub async fn open_with(options: Options) -> Result<Self> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let wanted = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        let adapter = instance.request_adapter(&wanted).await;
        let adapter = adapter.map_err(|e| err!(Device, "there is no WebGPU adapter here: {e}"))?;
        let limits = ask(&adapter.limits())?;
        let halves = options.f16 && adapter.features().contains(wgpu::Features::SHADER_F16);
        let info = adapter.get_info();
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("ontrain"),
            required_features: if halves { wgpu::Features::SHADER_F16 } else { wgpu::Features::empty() },
            required_limits: limits.clone(),
            ..Default::default()
        };
        let (device, queue) =
            adapter.request_device(&descriptor).await.map_err(|e| err!(Device, "the GPU gives no device: {e}"))?;
        let trouble = watch(&device);
        let piece = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size).min(MOST_BYTES) as usize;
        let piece = piece.min(options.largest_buffer).max(256);
        let name = format!("{} ({:?}, {:?})", info.name, info.device_type, info.backend);
        let software = info.device_type == wgpu::DeviceType::Cpu || is_software(&info.name);
        let software = options.software.unwrap_or(software);
        #[allow(
            clippy::arc_with_non_send_sync,
            reason = "in a browser the handles live on one thread; natively they are Sync"
        )]
        let shared = Arc::new(Shared {
            device,
            queue,
            pipelines: Pipelines::default(),
            checks: Mutex::default(),
            readback: Mutex::default(),
            halves,
            software,
            adapter: name,
            piece: piece / 256 * 256,
            bindings: limits.max_storage_buffers_per_shader_stage as usize,
            batches: AtomicU64::new(1),
            trouble,
            made: Made::default(),
        });
        Ok(Self::on(shared))
    }

    fn on(shared: Arc<Shared>) -> Self {
        #[allow(clippy::arc_with_non_send_sync, reason = "as above")]
        Self { stream: Arc::new(Stream::new(shared)) }
    }

    /// The adapter: its name, kind and driver interface.
    pub fn adapter(&self) -> &str {
        &self.stream.adapter
    }

    /// Are float16 tensors stored as two bytes?
    pub fn has_f16(&self) -> bool {
        self.stream.halves
    }

    /// Are the kernels those for software on a CPU?
    pub fn is_software(&self) -> bool {
        self.stream.software
    }

    /// What has been made and done so far.
    pub fn counters(&self) -> Counters {
        let made = &self.stream.made;
        let of = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        Counters {
            buffers: of(&made.buffers),
            bind_groups: of(&made.bind_groups),
            pipelines: of(&made.pipelines),
            submissions: of(&made.submissions),
            maps: of(&made.maps),
            dispatches: of(&made.dispatches),
        }
    }

    /// Is the device lost, for good?
    pub fn is_lost(&self) -> bool {
        matches!(&*lock(&self.stream.trouble), Some(Trouble::Lost(_)))
    }

    /// Gives the device up, as if it had been lost: every later call fails with a `Device` error.
    pub fn destroy(&self) {
        self.stream.device.destroy();
        *lock(&self.stream.trouble) = Some(Trouble::Lost("it was given up".into()));
    }
}

/// The limits to ask for: WebGPU's defaults, and as much room as the adapter has.
fn ask(adapter: &wgpu::Limits) -> Result<wgpu::Limits> {
    let mut limits = wgpu::Limits::default();
    let enough = [
        ("max_compute_invocations_per_workgroup", adapter.max_compute_invocations_per_workgroup, 256),
        ("max_compute_workgroup_storage_size", adapter.max_compute_workgroup_storage_size, 16 << 10),
        ("max_compute_workgroups_per_dimension", adapter.max_compute_workgroups_per_dimension, 65535),
        ("max_storage_buffers_per_shader_stage", adapter.max_storage_buffers_per_shader_stage, 8),
    ];
    for (name, has, needs) in enough {
        if has < needs {
            return Err(err!(Device, "the GPU is too small: {name}").expected(needs).found(has));
        }
    }
    limits.max_storage_buffers_per_shader_stage = adapter.max_storage_buffers_per_shader_stage.min(16);
    limits.max_storage_buffer_binding_size = adapter.max_storage_buffer_binding_size.min(MOST_BYTES);
    limits.max_buffer_size = adapter.max_buffer_size.min(MOST_BYTES);
    Ok(limits.or_worse_values_from(adapter))
}

/// Browsers do not say what kind of device an adapter is, but SwiftShader is known by its name.
fn is_software(name: &str) -> bool {
    let name = name.to_lowercase();
    ["swiftshader", "llvmpipe", "lavapipe", "software"].iter().any(|s| name.contains(s))
}

/// Keeps what the device says outside of any call.
fn watch(device: &wgpu::Device) -> Arc<Mutex<Option<Trouble>>> {
    let trouble: Arc<Mutex<Option<Trouble>>> = Arc::default();
    let lost = trouble.clone();
    device.set_device_lost_callback(move |reason, message| {
        let why = if message.is_empty() { format!("{reason:?}") } else { message };
        *lock(&lost) = Some(Trouble::Lost(why));
    });
    let failed = trouble.clone();
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        let mut trouble = lock(&failed);
        if trouble.is_none() {
            *trouble = Some(Trouble::Failed(error.to_string()));
        }
    }));
    trouble
}

impl Shared {
    /// Fails if the device is lost, or has reported an error since this was last asked.
    pub(super) fn check(&self) -> Result<()> {
        let mut trouble = lock(&self.trouble);
        match &*trouble {
            None => Ok(()),
            Some(Trouble::Lost(why)) => bail!(
                Device,
                "the GPU device is lost ({why}); the state that was last saved is intact: make a Module anew from it, on this \
                 or another device"
            ),
            Some(Trouble::Failed(why)) => {
                let error = err!(Device, "the GPU reports an error: {why}");
                *trouble = None;
                Err(error)
            }
        }
    }

    pub(super) fn layout(&self) -> Layout {
        fn words(dtype: DType) -> usize {
            storage(dtype, false).bytes()
        }
        fn halves(dtype: DType) -> usize {
            storage(dtype, true).bytes()
        }
        let size = if self.halves { halves } else { words };
        Layout { size, piece: self.piece, halves_apart: self.halves }
    }

    /// A GPU buffer of at least `bytes`, of zeros.
    pub(super) fn buffer(&self, label: &str, bytes: usize, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer> {
        self.check()?;
        if bytes > self.piece {
            return Err(err!(Device, "a tensor does not fit one buffer of the GPU")
                .expected(format!("at most {} bytes", self.piece))
                .found(bytes));
        }
        count(&self.made.buffers, 1);
        // Copies and bindings want multiples of 4, and something at all.
        let size = (bytes.max(16) as u64).next_multiple_of(16);
        let descriptor = wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        self.check().map_err(|e| {
            if e.kind() == Kind::Device { err!(Device, "there is no GPU memory for {bytes} bytes: {e}") } else { e }
        })?;
        Ok(buffer)
    }

    /// A number for a submission to come.
    pub(super) fn next_batch(&self) -> u64 {
        self.batches.fetch_add(1, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_that_are_too_small() {
        let limits = ask(&wgpu::Limits::default()).unwrap();
        assert_eq!(limits.max_storage_buffer_binding_size, 128 << 20);
        for small in [wgpu::Limits::downlevel_webgl2_defaults(), wgpu::Limits::downlevel_defaults()] {
            let error = ask(&small).unwrap_err();
            assert_eq!(error.kind(), Kind::Device);
            assert!(error.to_string().contains("the GPU is too small: max_"), "{error}");
        }
        let large = wgpu::Limits { max_storage_buffer_binding_size: 1 << 40, ..Default::default() };
        assert_eq!(ask(&large).unwrap().max_storage_buffer_binding_size, MOST_BYTES);
    }
}
