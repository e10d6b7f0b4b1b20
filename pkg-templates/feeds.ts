import { RawFeeds } from "./ontrain.js";
import { call, describe, free } from "./engine.js";
import { InputError } from "./errors.js";
import { dimsOf, onnxType, rawBytes, Tensor, type TensorLike } from "./tensor.js";

/** The inputs of a step or run: by name, or all of them in order. */
export type Feeds = Readonly<Record<string, TensorLike>> | readonly TensorLike[];

/**
 * Puts the inputs where the engine reads them, in the order of `names`.
 * @internal
 */
export function setFeeds(target: RawFeeds, names: readonly string[], feeds: Feeds): void {
  inOrder(names, feeds).forEach((tensor, i) => {
    call(() => target.set(i, onnxType(tensor), dimsOf(tensor), rawBytes(tensor)));
  });
}

/**
 * Places for inputs, used again and again. The caller's arrays are copied when a step is asked for, not when its turn has
 * come: each step that is under way has a place of its own.
 * @internal
 */
export class FeedPlaces {
  readonly #idle: RawFeeds[] = [];

  /** A place with these inputs. It comes back by `put`. */
  take(names: readonly string[], feeds: Feeds): RawFeeds {
    const place = this.#idle.pop() ?? call(() => new RawFeeds());
    try {
      setFeeds(place, names, feeds);
      return place;
    } catch (error) {
      this.put(place);
      throw error;
    }
  }

  put(place: RawFeeds): void {
    this.#idle.push(place);
  }

  /** Frees the places that have come back. */
  free(): void {
    this.#idle.splice(0).forEach(free);
  }
}

function inOrder(names: readonly string[], feeds: Feeds): Tensor[] {
  const expected = `expected ${names.map((name) => `"${name}"`).join(", ") || "no inputs"}`;
  if (typeof feeds !== "object" || feeds === null || feeds instanceof Tensor || ArrayBuffer.isView(feeds)) {
    throw new InputError(`inputs come as an object by name or as an array; ${expected}; found ${describe(feeds)}`);
  }
  if (Array.isArray(feeds)) {
    if (feeds.length !== names.length) {
      throw new InputError(`wrong number of inputs; ${expected}; found ${feeds.length}`);
    }
    return names.map((name, i) => input(name, feeds[i]));
  }
  const byName = feeds as Readonly<Record<string, TensorLike>>;
  const unknown = Object.keys(byName).find((name) => !names.includes(name));
  if (unknown !== undefined) throw new InputError(`the model has no input "${unknown}"; ${expected}`);
  return names.map((name) => {
    if (!Object.hasOwn(byName, name)) {
      const found = Object.keys(byName).map((key) => `"${key}"`).join(", ") || "none";
      throw new InputError(`input "${name}" is missing; ${expected}; found ${found}`);
    }
    return input(name, byName[name]);
  });
}

function input(name: string, like: TensorLike | undefined): Tensor {
  try {
    return Tensor.from(like as TensorLike);
  } catch (error) {
    if (error instanceof InputError) throw new InputError(`input "${name}": ${error.message}`);
    throw error;
  }
}
