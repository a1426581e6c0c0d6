/*
 * Rounds: for each service whose backends take turns, the number of connections so far; of those that
 * spill over (spills.h), apart from the others. With one number for both, turns would go wrong: if
 * each second connection spills over, each of either kind would find an even number, or an odd one.
 */
#pragma once

#include "lib/map.h"

struct schedule_round {
	__u64 connections;
	__u64 spilled;
};

MAP("hash", __u32, struct schedule_round, schedule_rounds, MAX_SERVICES, BPF_F_NO_PREALLOC);
