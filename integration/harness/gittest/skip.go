package gittest

import (
	"fmt"
	"os"
	"testing"
)

// Skip skips a test because a program is missing. It also appends a line to the file $AFS_SKIPPED, which `make test`
// prints at its end so that skipped tests are noticed.
func Skip(t testing.TB, format string, args ...any) {
	t.Helper()
	line := t.Name() + ": NOT TESTED, PROGRAM MISSING: " + fmt.Sprintf(format, args...)
	if path := os.Getenv("AFS_SKIPPED"); path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := fmt.Fprintln(f, line); err != nil {
			t.Fatal(err)
		}
	}
	t.Skip(line)
}
