/** The views of a compiled model, in the order of their tabs. The document of a single kernel has none of them. */

import type { ViewSpec } from '../views/spec';
import { fusion } from './fusion_view';
import { torchKernels } from './kernels_view';
import { reasons } from './reasons_view';
import { trend } from './trend_view';

export const TORCH_VIEWS: readonly ViewSpec[] = [torchKernels, fusion, reasons, trend];
