//! The chores of ontrain, as `cargo xtask VERB`. One file per verb: its arguments (`Args`, whose doc
//! comment is the verb's help) and what it does (`Args::run`). What several verbs share stands in
//! `cache` (things kept outside the checkout), `pack` (the npm package installed as a user would),
//! `readme` (the parts of README.md that a verb writes) and `sh` (running other programs).

mod cache;
mod pack;
mod readme;
mod sh;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Declares the verbs: a module and a subcommand each. Adding one is one line here.
macro_rules! verbs {
    ($($module:ident => $verb:ident,)*) => {
        $(mod $module;)*

        #[derive(Subcommand)]
        enum Verb {
            $($verb($module::Args),)*
        }

        impl Verb {
            fn run(self) -> anyhow::Result<()> {
                match self {
                    $(Verb::$verb(args) => args.run(),)*
                }
            }
        }
    };
}

verbs! {
    setup => Setup,
    build => Build,
    test => Test,
    demo => Demo,
    replay => Replay,
    node_suite => NodeSuite,
    bench => Bench,
    features => Features,
}

/// The chores of ontrain.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

fn main() -> ExitCode {
    match Cli::parse().verb.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
