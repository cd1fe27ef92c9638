package fuse

import (
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

// The conformance suite of go-fuse, each test on a mount of its own, of an empty tree: it counts what is there.
func TestPosix(t *testing.T) {
	for name, test := range posixtest.All {
		t.Run(name, func(t *testing.T) {
			if name == "FcntlFlockLocksFile" {
				// It wants two descriptors of one process to lock a file against each other. Such locks are the
				// process's (fcntl(2)), and it fails on ext4 and tmpfs as well; TestLocks asks two processes.
				t.Skip("wrong about locks of one process")
			}
			test(t, edit(t, nil).dir)
		})
	}
}
