// Package cluster tests deploy/kubernetes in a Kubernetes cluster of one node (make cluster-test). All tests use the
// same cluster.
package cluster

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/artifactfs/artifactfs/integration/harness/cluster"
)

func TestMain(m *testing.M) {
	code := cluster.Run(m)
	if len(summary.rows) > 0 { // this is the process with the tests
		fmt.Print(summary.String())
	}
	os.Exit(code)
}

// row is a line of a table: a title and values.
type row struct{ table, text string }

// report is what the tests have measured.
type report struct {
	mu   sync.Mutex
	rows []row
}

var summary report

// add adds a line to a table, and prints it.
func (r *report) add(t *testing.T, table, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	t.Logf("%s: %s", table, text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, row{table, text})
}

func (r *report) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "\n==== Cluster test, %s ====\n", time.Now().UTC().Format(time.DateOnly))
	table := ""
	for _, row := range r.rows {
		if row.table != table {
			table = row.table
			fmt.Fprintf(&b, "\n%s\n", table)
		}
		fmt.Fprintf(&b, "  %s\n", row.text)
	}
	return b.String()
}

// load returns the load average of the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	return strings.Fields(string(text))[0]
}

// check ends the test if err is not nil.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
