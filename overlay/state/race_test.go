//go:build race

package state

const raceEnabled = true // which takes memory of its own
