//go:build !race

package await

// Race is true in builds with the race detector. Such programs are several times slower and larger, so tests then skip
// checks of time and memory limits.
const Race = false
