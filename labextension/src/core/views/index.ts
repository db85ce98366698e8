/** The views, in the order of their tabs. */

import { bench } from './bench';
import { code } from './code';
import { compare } from './compare';
import { footprint } from './footprint';
import { history } from './history';
import { knobs } from './knobs';
import { memory } from './memory';
import { launch } from './launch';
import { passes } from './passes';
import { resources } from './resources';
import { roofline } from './roofline';
import { TORCH_VIEWS } from '../torch';
import type { ViewSpec } from './spec';
import { step } from './step';
import { sweep } from './sweep';
import { tiles } from './tiles';
import { timeline } from './timeline';

/** All views. */
export const VIEWS: readonly ViewSpec[] = [
  code,
  passes,
  resources,
  memory,
  tiles,
  launch,
  step,
  footprint,
  timeline,
  roofline,
  sweep,
  bench,
  history,
  knobs,
  compare,
  ...TORCH_VIEWS,
];
