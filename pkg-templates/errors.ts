/** What kind of thing went wrong. The set is closed: a program can switch on it. */
export type ErrorKind =
  | "Load"
  | "Graph"
  | "Shape"
  | "Unsupported"
  | "Gradient"
  | "Plan"
  | "Input"
  | "State"
  | "Device"
  | "Checkpoint";

/** Every error that ontrain throws on purpose. `message` says what was expected and what came. */
export abstract class OntrainError extends Error {
  /** The kind, which is also the class. */
  abstract get kind(): ErrorKind;
  /** Where: a node path such as `Gemm node "fc1"`, if it is known. */
  readonly at: string | undefined;

  constructor(message: string, at?: string) {
    super(message);
    this.at = at;
  }

  override get name(): string {
    return `${this.kind}Error`;
  }
}

/** Bytes that are not the file they should be: truncated, malformed, another format. */
export class LoadError extends OntrainError {
  override get kind() {
    return "Load" as const;
  }
}

/** A graph that contradicts itself, or a request about it: an unknown name, a cycle, a duplicate. */
export class GraphError extends OntrainError {
  override get kind() {
    return "Graph" as const;
  }
}

/** Shapes or types that do not fit together. */
export class ShapeError extends OntrainError {
  override get kind() {
    return "Shape" as const;
  }
}

/** Well-formed, but not something that ontrain can do. Names the node, the operator and the reason. */
export class UnsupportedError extends OntrainError {
  override get kind() {
    return "Unsupported" as const;
  }
}

/** A gradient that cannot be built; names what blocks the path. */
export class GradientError extends OntrainError {
  override get kind() {
    return "Gradient" as const;
  }
}

/** A plan that cannot be made for these input shapes. */
export class PlanError extends OntrainError {
  override get kind() {
    return "Plan" as const;
  }
}

/** An argument or tensor with the wrong name, type, shape or values. */
export class InputError extends OntrainError {
  override get kind() {
    return "Input" as const;
  }
}

/** A call in the wrong state: no eval model, no optimizer, a released object, a loss that is not finite. */
export class StateError extends OntrainError {
  override get kind() {
    return "State" as const;
  }
}

/** A device that is not there, too small, out of memory or lost, or a tensor that does not fit it. What was saved is intact. */
export class DeviceError extends OntrainError {
  override get kind() {
    return "Device" as const;
  }
}

/** A checkpoint that is damaged or belongs to another model. */
export class CheckpointError extends OntrainError {
  override get kind() {
    return "Checkpoint" as const;
  }
}

const CLASSES: Record<ErrorKind, new (message: string, at?: string) => OntrainError> = {
  Load: LoadError,
  Graph: GraphError,
  Shape: ShapeError,
  Unsupported: UnsupportedError,
  Gradient: GradientError,
  Plan: PlanError,
  Input: InputError,
  State: StateError,
  Device: DeviceError,
  Checkpoint: CheckpointError,
};

/**
 * The class of an error that the engine threw, or undefined if it is another one.
 * @internal
 */
export function typed(thrown: unknown): OntrainError | undefined {
  if (!(thrown instanceof Error) || !("kind" in thrown)) return undefined;
  const known = CLASSES[thrown.kind as ErrorKind];
  if (known === undefined) return undefined;
  return new known(thrown.message, "at" in thrown ? String(thrown.at) : undefined);
}
