//! Work that the device may finish later.
//!
//! An `async fn` of wasm-bindgen is first polled in a microtask of its own, where a panic or a trap reaches nobody and the
//! promise stays open for ever. So work is only polled in calls from JavaScript, which catch what is thrown: [`start`] polls
//! once, and what is not done then goes back as a [`RawTask`], to be resumed when it has been woken. On the processor
//! everything is done in the first poll.

use super::{JsResult, js};
use crate::error::{Result, err};
use js_sys::Promise;
use std::cell::{RefCell, RefMut};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;

/// Work that waits for the device.
#[wasm_bindgen]
pub struct RawTask {
    work: Pin<Box<dyn Future<Output = JsResult<JsValue>>>>,
    signal: Arc<Signal>,
}

#[wasm_bindgen]
impl RawTask {
    /// Resolves when the work can go on.
    pub fn woken(&self) -> Promise {
        let signal = self.signal.clone();
        future_to_promise(async move {
            std::future::poll_fn(|cx| signal.poll(cx)).await;
            Ok(JsValue::UNDEFINED)
        })
    }

    /// Goes on: gives the result if it is there, else a task again.
    pub fn resume(mut self) -> JsResult<JsValue> {
        let waker = Waker::from(self.signal.clone());
        match self.work.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(self.into()),
        }
    }
}

/// Begins work: gives its result if it is there at once, else a [`RawTask`].
pub(super) fn start<T: Into<JsValue>>(work: impl Future<Output = Result<T>> + 'static) -> JsResult<JsValue> {
    let work = Box::pin(async { work.await.map(Into::into).map_err(js) });
    RawTask { work, signal: Arc::default() }.resume()
}

/// Takes an object for the time of a call. Calls on one object are made one after the other, which the caller sees to;
/// `State` error if it does not.
pub(super) fn lent<T>(shared: &RefCell<T>) -> Result<RefMut<'_, T>> {
    shared.try_borrow_mut().map_err(|_| err!(State, "another call on this object has not finished: await it first"))
}

/// Says once that work can go on.
#[derive(Default)]
struct Signal {
    woken: AtomicBool,
    waiting: Mutex<Option<Waker>>,
}

impl Signal {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.woken.swap(false, Ordering::Relaxed) {
            return Poll::Ready(());
        }
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Relaxed);
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}
