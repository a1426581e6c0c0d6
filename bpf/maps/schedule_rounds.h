/* Rounds: for each service whose backends take turns, the number of connections so far. */
#pragma once

#include "lib/map.h"

struct schedule_round {
	__u64 connections;
};

MAP("hash", __u32, struct schedule_round, schedule_rounds, MAX_SERVICES, BPF_F_NO_PREALLOC);
