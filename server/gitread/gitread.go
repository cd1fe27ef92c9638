// Package gitread reads sessions from a git directory, by stock git: checkpoints, metadata and annotated files. It also
// finds out which changes git can merge.
package gitread

import "github.com/artifactfs/artifactfs/git/read"

// Repo reads sessions from one git directory. It may be used from any goroutine.
type Repo struct{ read.Repo }
