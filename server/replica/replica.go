// Package replica keeps git directories from which stock git serves repositories. The truth is elsewhere: refs are records, packs
// are in the object store. A replica is a copy on this host, which is made when it is needed, brought up to date before each
// request, and removed when it has not been used for long.
package replica

import (
	"context"

	"github.com/artifactfs/artifactfs/server/objects"
	"github.com/artifactfs/artifactfs/server/records"
)

// Options configures a Set.
type Options struct {
	Dir      string // of the replicas; other processes must not use it
	Records  *records.DB
	Objects  objects.Store
	MaxBytes int64 // of packs that were copied from a shared store; the replicas that were used least recently are removed
	MaxRepos int   // number of replicas that are kept
}

// Set contains the replicas of this process.
type Set struct{}

// Open starts with the replicas that an earlier process has left in the directory, if they are valid.
func Open(o Options) (*Set, error) { panic("not written yet") }

func (s *Set) Close() error { panic("not written yet") }

// Acquire returns the replica of a repository, with all refs and packs that the repository had when Acquire was called, or newer
// ones. It is not removed before Release.
func (s *Set) Acquire(ctx context.Context, repoID string) (*Replica, error) { panic("not written yet") }

// Replica is a git directory.
type Replica struct {
	Dir  string
	Repo records.Repo // as of the last update of the replica
}

// Release ends the use of the replica.
func (r *Replica) Release() { panic("not written yet") }

// Store stores a pack that git has written to a quarantine directory: it records the pack, puts its files into the object store and
// returns it, so that a push can add it to a repository. dir contains pack-HASH.pack and pack-HASH.idx.
func (s *Set) Store(ctx context.Context, dir, hash string) (records.Pack, error) {
	panic("not written yet")
}
