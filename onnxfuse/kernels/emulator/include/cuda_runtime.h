// Here before the first line of every kernel.
#pragma once
#include "cuda_emulator.h"
