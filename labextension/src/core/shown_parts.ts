/**
 * What the views of a card show, by name, so that a widget's traits can follow the views and move them.
 *
 * A view calls `tell` when the user moves it to another stage, program or iteration. A widget calls `ask` when a trait changes, and the
 * views follow. A view does not tell its defaults: a late message with one would undo what Python has set in the meantime. The selected
 * line and op, and the target, are in the store itself.
 */

/** The stages of the listing or comparison, and the program and iteration of the memory accesses. */
export interface ShownParts {
  stage: string | null;
  /** null: no comparison, or the stage before. */
  compared_with: string | null;
  program: number;
  iteration: number;
}

type Listener = (parts: Partial<ShownParts>) => void;

/** Connects the views with the traits of a widget. */
export class Shown {
  /** What was asked for so far. A view that is mounted later begins with it. */
  wanted: Partial<ShownParts> = {};
  private readonly views = new Set<Listener>();
  private readonly widgets = new Set<Listener>();

  /** Moves the views. */
  ask(parts: Partial<ShownParts>): void {
    this.wanted = { ...this.wanted, ...parts };
    this.views.forEach((listener) => listener(parts));
  }

  /** Reports what the user has chosen in a view. It replaces what was asked for. */
  tell(parts: Partial<ShownParts>): void {
    const replaced = Object.entries(parts).filter(([name]) => name in this.wanted);
    this.wanted = { ...this.wanted, ...Object.fromEntries(replaced) };
    this.widgets.forEach((listener) => listener(parts));
  }

  /** Calls back when a view shall move. Returns a function that stops the calls. */
  onAsk(listener: Listener): () => void {
    this.views.add(listener);
    return () => this.views.delete(listener);
  }

  /** Calls back when the user has moved a view. Returns a function that stops the calls. */
  onTell(listener: Listener): () => void {
    this.widgets.add(listener);
    return () => this.widgets.delete(listener);
  }
}
