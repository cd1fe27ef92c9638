//go:build race

package state

const raceEnabled = true // the race detector allocates additional memory
