// Package disktest makes disks fail: operations that return errors, and power cuts.
package disktest

import (
	"github.com/artifactfs/artifactfs/internal/disk"
)

// Op is one operation on a Faulty disk.
type Op struct {
	N    int    // counted from 1
	Name string // of the method
	Path string
}

// Faulty gives a file system that asks before each operation whether it shall fail. A write that fails writes half
// of its bytes.
func Faulty(fs disk.FS, fail func(Op) error) disk.FS { panic("not written yet") }

// Nth fails the n-th operation.
func Nth(n int, err error) func(Op) error {
	return func(op Op) error {
		if op.N == n {
			return err
		}
		return nil
	}
}
