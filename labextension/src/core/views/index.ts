/** The views, in the order of their tabs. */

import { bench } from './bench';
import { code } from './code';
import { compare } from './compare';
import { history } from './history';
import { knobs } from './knobs';
import { passes } from './passes';
import { resources } from './resources';
import { roofline } from './roofline';
import type { ViewSpec } from './spec';
import { sweep } from './sweep';
import { tiles } from './tiles';
import { timeline } from './timeline';

/** All views. */
export const VIEWS: readonly ViewSpec[] = [
  code,
  passes,
  resources,
  tiles,
  timeline,
  roofline,
  sweep,
  bench,
  history,
  knobs,
  compare,
];
