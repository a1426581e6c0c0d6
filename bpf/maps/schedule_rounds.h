/*
 * Rounds: for each service with a schedule that takes turns, the number of connections so far.
 * Connections that overflow (spills.h) have a number of their own. With one number for both, turns
 * would go wrong: if each second connection overflows, each of the two kinds would only find even
 * numbers, or only odd ones.
 */
#pragma once

#include "lib/map.h"

struct schedule_round {
	__u64 connections;
	__u64 spilled;
};

MAP("hash", __u32, struct schedule_round, schedule_rounds, MAX_SERVICES, BPF_F_NO_PREALLOC);
