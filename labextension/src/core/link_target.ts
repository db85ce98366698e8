/**
 * The place in a card that a link names: a tab, and in it a stage. A link to a notebook has it in the query (`?blocknb=passes.coalesce`),
 * and a link into an exported page in the fragment (`#card-2=passes.coalesce`).
 */

/** A tab by its key, and the name of a stage in the Passes tab. */
export interface LinkTarget {
  tab: string;
  stage?: string;
}

const WORD = /^[\w-]{1,64}$/;

/** Writes a place for a link. */
export function targetText({ tab, stage }: LinkTarget): string {
  return stage ? `${tab}.${stage}` : tab;
}

/** Reads a place from a link; null if the text is none. */
export function readTarget(text: string | null | undefined): LinkTarget | null {
  const [tab, stage, ...rest] = (text ?? '').split('.');
  if (!WORD.test(tab) || rest.length || (stage !== undefined && !WORD.test(stage))) {
    return null;
  }
  return stage === undefined ? { tab } : { tab, stage };
}

/** Opens the tab of a card, and in it the stage. A name that the card does not have changes nothing. */
export function openTarget(card: HTMLElement, { tab, stage }: LinkTarget): void {
  const named = (
    selector: string,
    name: string,
    of: (element: HTMLElement) => string | null | undefined,
  ): void =>
    [...card.querySelectorAll<HTMLElement>(selector)].find((element) => of(element) === name)?.click();
  named('.bnb-tab', tab, (element) => element.dataset.key);
  if (stage) {
    named(
      '.bnb-panel:not([hidden]) .bnb-stage',
      stage,
      (element) => element.querySelector('.bnb-stage-name')?.textContent,
    );
  }
}

/** Returns the place that a card shows. */
export function targetOf(card: HTMLElement): LinkTarget {
  const tab = card.querySelector<HTMLElement>('.bnb-tab[aria-selected="true"]')?.dataset.key ?? '';
  const chosen = '.bnb-panel:not([hidden]) .bnb-stage[aria-selected="true"] .bnb-stage-name';
  const stage = tab === 'passes' ? card.querySelector(chosen)?.textContent : undefined;
  return stage ? { tab, stage } : { tab };
}
