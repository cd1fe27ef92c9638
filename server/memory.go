package server

import (
	"math"
	"runtime/debug"

	"github.com/artifactfs/artifactfs/internal/memlimit"
	"github.com/artifactfs/artifactfs/internal/metrics"
	"github.com/artifactfs/artifactfs/server/places"
)

// limitMemory divides the memory that this process and its children can use: five eighths of it are for the git
// processes, a quarter for this process, and the rest for the database, the page cache and the kernel. total is the
// memory in bytes, 0: that of the machine or, if it has less, of the control group. each limits that of one git
// process.
func limitMemory(total, each int64) *places.Memory {
	if total <= 0 {
		total = memlimit.Bytes()
	}
	if total == math.MaxInt64 { // neither is known
		total = 4 << 30
	}
	if now := debug.SetMemoryLimit(-1); total/4 < now { // GOMEMLIMIT may be less
		debug.SetMemoryLimit(total / 4)
	}
	return places.NewMemory(total/8*5, each)
}

// writeMemory writes the metrics of the memory of git processes.
func writeMemory(m *places.Memory) func(w *metrics.Writer) {
	return func(w *metrics.Writer) {
		w.Family("artifactfs_server_git_memory_bytes", metrics.Gauge,
			"Memory that git processes can allocate: all together, and those that run or wait for a request.")
		w.Sample(float64(m.Total()), metrics.Label{Name: "of", Value: "all"})
		w.Sample(float64(m.Used()), metrics.Label{Name: "of", Value: "used"})
	}
}
