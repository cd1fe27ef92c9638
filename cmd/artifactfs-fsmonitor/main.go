// Command artifactfs-fsmonitor is the hook by which git before 2.55 asks what has changed in a mount (core.fsmonitor,
// protocol version 2). git starts it for every command that looks at the working tree, so it does nothing but ask the
// daemon, and is small: it starts several milliseconds sooner than artifactfs, which can do the same.
//
// It is started through a link beside the git directory, whose path names the git directory. Without an answer it
// fails, and git looks itself.
package main

import (
	"os"

	"github.com/artifactfs/artifactfs/git/gitdir/fsmonitor/query"
)

func main() { os.Exit(query.Hook(os.Args, os.Stdout)) }
