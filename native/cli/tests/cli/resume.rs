//! Stopped and resumed trainings are as if they had not been stopped; a killed one leaves a whole file.

use crate::support::*;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

const OPTIONS: [&str; 18] = [
    "train",
    "--artifacts",
    "a",
    "--data",
    "data.npz",
    "--batch-size",
    "7",
    "--accumulate",
    "2",
    "--lr",
    "0.01",
    "--schedule",
    "linear",
    "--warmup",
    "5",
    "--seed",
    "11",
    "--json",
];

/// Epoch, batch, loss, mean loss, accuracy, learning rate of each step, and the losses of each epoch.
fn course(lines: &[Value]) -> Vec<String> {
    let of = |line: &Value| {
        let keys: &[&str] = match line["event"].as_str() {
            Some("step") => &["epoch", "batch", "loss", "mean_loss", "accuracy", "learning_rate"],
            Some("epoch") => &["epoch", "loss", "accuracy", "learning_rate", "optimizer_steps"],
            _ => return None,
        };
        Some(keys.iter().map(|key| format!("{key} {} ", line[key])).collect::<String>())
    };
    lines.iter().filter_map(of).collect()
}

fn spawn(folder: &Path, args: &[&str]) -> (Child, BufReader<impl Read + use<>>) {
    let mut child = command(folder, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

/// Sends a signal with `kill`, as a user would.
#[cfg(unix)]
fn signal(child: &Child, name: &str) {
    let sent = std::process::Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
#[cfg(unix)]
fn ctrl_c_saves_and_resuming_changes_nothing() {
    let folder = prepared("ctrl_c");
    // 9 batches and 5 optimizer steps an epoch.
    let training = [&OPTIONS[..], &["--epochs", "150", "--log-every", "1"]].concat();
    let whole = ontrain(&folder, &[&training[..], &["--save", "whole"]].concat()).ok();

    let (mut child, out) = spawn(&folder, &[&training[..], &["--save", "parts"]].concat());
    let mut lines = Vec::new();
    for line in out.lines() {
        lines.push(serde_json::from_str::<Value>(&line.unwrap()).unwrap());
        if lines.len() == 25 {
            signal(&child, "-INT");
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(stderr.contains("interrupted: saving after this step"), "{stderr}");
    let interrupted = lines.last().unwrap();
    assert_eq!((&interrupted["event"], &interrupted["path"]), (&"interrupted".into(), &"parts".into()));
    assert_eq!(interrupted["batches_done"].as_u64().map(|n| n % 2), Some(0), "between two optimizer steps");

    // No option but where things are: the others come from the checkpoint.
    let again = [
        "train",
        "--artifacts",
        "a",
        "--data",
        "data.npz",
        "--resume",
        "parts",
        "--save",
        "parts",
        "--log-every",
        "1",
        "--json",
    ];
    let rest = ontrain(&folder, &again).ok();
    let (all, mut both) = (course(&whole.json()), course(&lines));
    assert!(both.len() >= 24 && both.len() < all.len() - 1, "stopped on the way");
    both.extend(course(&rest.json()));
    for (i, (a, b)) in all.iter().zip(&both).enumerate() {
        assert_eq!(a, b, "line {i}");
    }
    assert_eq!(all.len(), both.len());
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert!(read("whole") == read("parts"), "the same checkpoint, byte for byte");
}

/// Stopping at the end of an epoch and asking for more is another way to be interrupted.
#[test]
fn more_epochs() {
    let folder = prepared("more_epochs");
    let options: Vec<&str> =
        OPTIONS.iter().copied().filter(|o| !["--schedule", "linear", "--warmup", "5"].contains(o)).collect();
    let run = |more: &[&str]| ontrain(&folder, &[&options[..], more].concat()).ok().events("epoch");
    let whole = run(&["--epochs", "4", "--save", "whole"]);
    let mut parts = run(&["--epochs", "2", "--save", "part"]);
    parts.extend(run(&["--epochs", "4", "--resume", "part", "--save", "part"]));
    let losses = |epochs: &[Value]| epochs.iter().map(|e| e["loss"].clone()).collect::<Vec<_>>();
    assert_eq!(losses(&whole), losses(&parts));
    assert!(run(&["--epochs", "4", "--resume", "part", "--save", "part"]).is_empty(), "nothing is left to do");
}

/// Without its seed or order a training is another one: the tests above can fail.
#[test]
fn seeds_and_orders_differ() {
    let folder = prepared("seeds");
    let loss = |more: &[&str]| {
        let args =
            [&["train", "--artifacts", "a", "--data", "data.npz", "--batch-size", "7", "--save", "c", "--json"], more]
                .concat();
        ontrain(&folder, &args).ok().events("epoch")[0]["loss"].to_string()
    };
    let first = loss(&["--seed", "1"]);
    assert_eq!(first, loss(&["--seed", "1", "--shuffle"]));
    assert_ne!(first, loss(&["--seed", "2"]));
    assert_ne!(first, loss(&["--seed", "1", "--no-shuffle"]));
    assert_ne!(first, loss(&["--seed", "1", "--accumulate", "2"]));
}

/// Killed at any moment of a training that saves all the time, the file is a whole checkpoint that can be resumed.
#[test]
#[cfg(unix)]
fn a_kill_while_saving_leaves_a_whole_file() {
    let folder = prepared("kill");
    let file = folder.join("c");
    let training = [&OPTIONS[..], &["--epochs", "100000", "--save", "c", "--save-every", "1"]].concat();
    for round in 0..12 {
        let _ = std::fs::remove_file(&file);
        let (mut child, _out) = spawn(&folder, &training);
        while !file.exists() {
            assert!(child.try_wait().unwrap().is_none(), "the training ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(round * 1300));
        signal(&child, "-KILL");
        assert_eq!(child.wait().unwrap().code(), None, "killed by a signal");
        let inspected = ontrain(&folder, &["inspect", "c", "--json"]).ok().json().remove(0);
        assert!(inspected["optimizer"]["step"].as_u64() >= Some(1), "{inspected}");
        let steps = inspected["properties"]["ontrain.epoch"].as_u64().unwrap() * 5
            + inspected["properties"]["ontrain.batch"].as_u64().unwrap() / 2;
        assert_eq!(inspected["optimizer"]["step"].as_u64(), Some(steps), "position and optimizer belong together");
    }
    let epochs = ontrain(&folder, &["inspect", "c", "--json"]).ok().json().remove(0)["properties"]["ontrain.epoch"]
        .as_u64()
        .unwrap()
        + 1;
    let resume = ["--resume", "c", "--epochs", &epochs.to_string(), "--save", "c"];
    ontrain(&folder, &[&OPTIONS[..], &resume].concat()).ok();
}
