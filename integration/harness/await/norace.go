//go:build !race

package await

// Race reports whether the race detector is on. It makes programs several times slower and larger, so tests do not check limits of
// time and memory with it.
const Race = false
