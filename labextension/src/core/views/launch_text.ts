/** The sentences about a step of a launch: its program, iteration and wave. The view and exported animations show the same. */

import type { LaunchPlayer } from '../launch_player';
import { bytesText, type LaunchFacts, programText } from '../teaching';

/** Says which program, iteration and wave the current steps of a player belong to. */
export function whereText(facts: LaunchFacts, player: LaunchPlayer): string {
  const to = player.span[1];
  const [[rank, program]] = facts.steps[to];
  const loop = player.loopPlace(to);
  const where = loop.loops ? ` of ${loop.loops}` : '';
  const iteration = loop.of > 1 ? `iteration ${loop.iteration} of ${loop.of}${where}` : '';
  const parts = [
    player.unit === 'wave'
      ? ''
      : `program ${programText(program, facts.grid)}, number ${rank + 1} of ${facts.programs} in launch order`,
    player.unit === 'iteration' ? iteration : '',
    waveText(facts, player, rank),
  ];
  return parts.filter(Boolean).join(' · ');
}

function waveText(facts: LaunchFacts, player: LaunchPlayer, rank: number): string {
  const { machine } = facts;
  if (!machine) {
    return player.unit === 'wave' ? 'all programs (without GPU code there are no waves)' : '';
  }
  const waves = Math.ceil(facts.programs / player.together);
  const each = `${machine.multiprocessors} SMs (${machine.chip}) × ${machine.each} ${machine.each === 1 ? 'program' : 'programs'}`;
  return `wave ${Math.floor(rank / player.together) + 1} of ${waves}: ${each} run together`;
}

/** Says how many bytes the launch has loaded and stored up to the current steps of a player. */
export function bytesSentence(player: LaunchPlayer): string {
  const [loaded, first, stored] = player.counted();
  return `loaded ${bytesText(loaded)}, ${bytesText(first)} of them for the first time · stored ${bytesText(stored)}`;
}
