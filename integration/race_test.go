//go:build race

package integration

const raceEnabled = true // the command is built with the race detector, too
