// Package receive makes pushes visible. git receive-pack reads a push, checks its objects and their connectivity, and
// then runs the hook proc-receive. In place of the hook, this package decides about the updates of refs: it checks
// names, the rules of the token, and the policy of the repository (package gate), stores the pack, and changes the refs
// in one transaction.
//
// git runs in a copy of the replica that has only the packs which the repository lists (replica.Copy). So every object
// that git finds belongs to the repository or to this push, and no object of a refused push is left.
//
// The hook is a script of one line, because a shell starts in a millisecond. It sends its process ID through a socket
// that receive-pack has inherited from the server. The server opens the standard input and output of the hook through
// /proc, speaks with receive-pack as githooks(5) describes, and then sends the exit status to the hook.
package receive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitcmd"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/server/events"
	"github.com/artifactfs/artifactfs/server/quota"
	"github.com/artifactfs/artifactfs/server/records"
	"github.com/artifactfs/artifactfs/server/replica"
)

// hook is the script proc-receive. Descriptor 3 is the first one of exec.Cmd.ExtraFiles. The server uses copies of the
// standard input and output, because the shell redirects the original ones for two of its commands.
const hook = `#!/bin/sh
exec 4<&0 5>&1 && echo $$ >&3 && read -r status <&3 && exit "$status"
`

// hookInput and hookOutput are the descriptors of the hook that are copies of its standard input and output.
const hookInput, hookOutput = 4, 5

// Options configures a Receiver.
type Options struct {
	Dir      string // directory of the hook; New creates it
	Records  *records.DB
	Replicas *replica.Set
	Quotas   *quota.Keeper // checks quotas of namespaces; nil: there are none
	// maximum number of refs that a token with rules may have created, without those that it has removed; 0: no limit
	MostRefs int64
	Log      *zap.Logger
	// Events prepares the events of a push, before its transaction. dir is a git directory that has all objects. merges
	// are the updates that merge sessions. The function that Events returns is called within the transaction. If Events
	// is nil, pushes have no events.
	Events func(ctx context.Context, dir string, repo records.Repo, token records.Token, updates []records.RefUpdate,
		merges []events.Merge) MakeEvents
}

// MakeEvents returns the events of the updates that were made.
type MakeEvents = func(done []records.RefUpdate) []records.Event

// Receiver receives pushes. Its methods may be called from any goroutine.
type Receiver struct {
	o        Options
	git      gitcmd.Confined
	settings [][2]string // settings of git, which are passed in its environment
}

// New writes the hook and returns a Receiver.
func New(o Options) (*Receiver, error) {
	dir, err := filepath.Abs(o.Dir)
	if err == nil {
		err = writeHook(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("write hook of git: %w", err)
	}
	r := &Receiver{o: o, git: o.Replicas.Git(),
		settings: [][2]string{{"core.hooksPath", dir}, {"receive.procReceiveRefs", "refs"}}}
	r.git.Env = append(r.git.Env, settings(r.settings)...)
	return r, nil
}

// settings returns environment variables that pass the settings in list to git.
func settings(list [][2]string) []string {
	env := []string{fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(list))}
	for i, s := range list {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, s[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, s[1]))
	}
	return env
}

// writeHook writes the script. While the script is open for writing, it prevents this process from starting a child:
// the child would hold the script open until its program runs, and the kernel does not execute such a file (ETXTBSY).
func writeHook(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return disk.WriteFileUnsynced(filepath.Join(dir, "proc-receive"), []byte(hook), 0o700)
}

// failure is an error of the server, such as a full disk, with a text for the user of git.
type failure struct {
	text string
	err  error
}

func (f failure) Error() string { return f.text }
func (f failure) Unwrap() error { return f.err }

// ErrChanged is the result of all updates if another push has changed a ref on which the decision was based.
var ErrChanged = errors.New("the policy, the approvals or the session were changed during the push, try again")

// errMissing has the text that git uses for an update whose objects are missing.
var errMissing = errors.New("missing necessary objects")
