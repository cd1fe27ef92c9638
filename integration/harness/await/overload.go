package await

import (
	"bytes"
	"fmt"
	"os"
	"time"
)

// StalledTime returns the time for which something has waited for a processor, memory or a disk since the start of the
// machine: the sum of the stall times in /proc/pressure (Documentation/accounting/psi.rst). It returns 0 if the kernel
// does not count them. Tests with an upper limit of time subtract what was added meanwhile, because on an overloaded
// machine that part of the time does not depend on the tested code.
func StalledTime() (sum time.Duration) {
	for _, what := range []string{"cpu", "memory", "io"} {
		text, _ := os.ReadFile("/proc/pressure/" + what)
		_, total, _ := bytes.Cut(text, []byte("total=")) // the total of "some", the first line
		var us int64
		fmt.Sscan(string(total), &us)
		sum += time.Duration(us) * time.Microsecond
	}
	return sum
}
