package promisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/git/object"
	"github.com/artifactfs/artifactfs/internal/proc"
)

// git checks that the blobs of a tree exist before it writes the tree (commit, merge, stash, checkout). A blob that the
// promisor remote can supply exists, so these checks need no request. git makes them in two ways: for each blob that is
// not in a pack, it calls lstat on the path of a loose object, and before that, to fetch all missing blobs with one
// request, it lists the directories of loose objects (cache_tree_update; OBJECT_INFO_QUICK). existence answers both
// questions for the directory in which package fuse shows the objects. A process that opens an object gets no contents
// there, and therefore sends a request for it.
//
// The answer depends on the process:
//   - The git fetch with which git requests objects must not find them, because it does not request objects that exist.
//   - Commands that write trees find the blobs of the shown tree in listings. For other commands listings are empty,
//     because these commands request the contents of all blobs at once that a listing lacks.
//   - Programs other than git cannot request objects, so they get the contents. They find nothing in listings.
//   - git fsck and git pack-objects find nothing, and neither do this program, the git commands that it runs, and
//     processes that cannot be identified: this program has to know which contents are on this host.
//   - A git diff that could crash when it requests an object gets no contents either, but finds the object in a pack
//     when its open returns (method Opened).
//   - A process that has opened an object, and got no contents, does not find it any more. If the request for the
//     object has failed too, git would report a loose object that exists as corrupt.
type existence struct {
	provider Provider
	shown    Shown

	mu     sync.Mutex
	last   checker              // the process that has asked most recently
	asked  map[uint32]object.ID // the object for which each thread has asked most recently, by thread ID
	opened map[uint32]object.ID // the object that each thread has opened most recently, by thread ID
	listed listed
}

// Shown describes the tree that the mount shows.
type Shown interface {
	// Shown returns the id of the tree.
	Shown() object.ID
	// Blobs calls visit for all blobs of the tree whose trees are on this host. It does not wait.
	Blobs(visit func(object.ID))
}

// listed contains the blobs of a tree.
type listed struct {
	tree  object.ID
	names [256][]string // ids of the blobs without their first two digits, by the first byte of the id
	drop  *time.Timer   // removes the names from memory if no process has asked for listTime
}

const (
	// callerTime is the time for which the kind of a process is remembered before its arguments are read again. In such
	// a short time, the kernel does not give the same process ID to another process.
	callerTime = 50 * time.Millisecond
	// listTime is the time after which the names of a tree's blobs are dropped from memory.
	listTime = 10 * time.Second
)

// kind is the kind of a process that asks for the existence of objects.
type kind int

const (
	excluded   kind = iota // a process that finds no objects
	program                // a program other than git
	gitCommand             // a git command that writes no trees
	comparison             // a git diff for which crashes returns true
	treeWriter             // a git command that may write trees
)

// checker is a process that has asked whether objects exist.
type checker struct {
	id   uint32 // ID of the thread that has asked
	kind kind
	at   time.Time
}

// treeWriters are the git commands that check a whole tree before they write a tree, and that need the contents of only
// a few blobs of it. The command reset is not one of them: it checks nothing, and in a new linked worktree it needs all
// contents.
var treeWriters = []string{"commit", "write-tree", "stash", "merge", "pull", "rebase", "cherry-pick", "revert", "am",
	"checkout", "switch"}

// readers are the git commands for which an object must exist only if they can read it: fsck does not request objects,
// and pack-objects omits loose objects of alternates.
var readers = []string{"fsck", "pack-objects"}

// kindOf returns the kind of the process to which a thread belongs. The caller must hold mu.
func (e *existence) kindOf(tid uint32) kind {
	if e.last.id == tid && time.Since(e.last.at) < callerTime {
		return e.last.kind
	}
	k := excluded
	args, err := proc.Of(int(tid)).Args()
	executable, exeErr := proc.Of(int(tid)).Executable()
	stat, statErr := proc.Of(int(tid)).Stat()
	if errors.Join(err, exeErr, statErr) == nil && len(args) > 0 && executable != ownExecutable() &&
		stat.Parent != os.Getpid() {
		k = kindByArgs(args)
	}
	e.last = checker{tid, k, time.Now()}
	return k
}

// ownExecutable returns the path of this program.
var ownExecutable = sync.OnceValue(func() string { path, _ := proc.Self.Executable(); return path })

// kindByArgs returns the kind of a process with these arguments. The first argument is the program.
func kindByArgs(args []string) kind {
	p := process{args: args}
	name, _ := Subcommand(args)
	switch {
	case !p.isGit(), name == "lfs":
		return program
	case p.isOurFetch(), slices.Contains(readers, name):
		return excluded
	case slices.Contains(treeWriters, name):
		return treeWriter
	case crashes(args):
		return comparison
	}
	return gitCommand
}

// find reports whether the process of the thread tid is to find the blob id, and whether it is to get the contents of
// the blob.
func (e *existence) find(ctx context.Context, tid uint32, id object.ID) (found, contents bool, err error) {
	e.mu.Lock()
	k := e.kindOf(tid)
	absent := k == excluded || e.opened[tid] == id
	if !absent {
		remember(&e.asked, tid, id)
	}
	e.mu.Unlock()
	if absent {
		return false, false, nil
	}
	found, err = e.provider.NamedBlobs().Has(ctx, id)
	return found, k == program, err
}

// noteOpened records that the thread tid has opened the object for which it has asked most recently. It returns the id
// of the object, and whether the process must find the object in a pack, because its request could make it crash.
func (e *existence) noteOpened(tid uint32) (id object.ID, supply bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id, ok := e.asked[tid]
	if ok {
		remember(&e.opened, tid, id)
	}
	return id, ok && e.kindOf(tid) == comparison
}

// remember records id as the object of a thread. If more than maxAskers threads are recorded, it first removes all of
// them.
func remember(of *map[uint32]object.ID, tid uint32, id object.ID) {
	if *of == nil || len(*of) > maxAskers {
		*of = map[uint32]object.ID{}
	}
	(*of)[tid] = id
}

// lists reports whether the process of the thread tid is to find the blobs of the shown tree in listings.
func (e *existence) lists(tid uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kindOf(tid) == treeWriter
}

// list returns the names in the listing of one directory of loose objects: that of the ids whose first byte is first.
func (e *existence) list(first byte) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if tree := e.shown.Shown(); e.listed.drop == nil || e.listed.tree != tree {
		e.listed = listed{tree: tree, drop: time.AfterFunc(listTime, e.drop)}
		e.shown.Blobs(func(id object.ID) {
			first := &e.listed.names[id.Bytes()[0]]
			*first = append(*first, id.String()[2:])
		})
		for i, names := range e.listed.names {
			slices.Sort(names)
			e.listed.names[i] = slices.Compact(names)
		}
	}
	e.listed.drop.Reset(listTime)
	return e.listed.names[first]
}

// drop removes the names from memory.
func (e *existence) drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listed = listed{}
}

// Find reports whether the process of the thread tid is to find the blob id, and whether it is to get the contents of
// the blob. If so, Find fetches the contents, together with the objects that the process will probably need next.
func (s *Server) Find(ctx context.Context, tid uint32, id object.ID) (found, contents bool, err error) {
	found, contents, err = s.existence.find(ctx, tid, id)
	if err != nil || !found || !contents || len(s.provider.Missing([]object.ID{id})) == 0 {
		return found, contents, err
	}
	p, err := readProcess(int(tid))
	if err != nil {
		return false, false, nil // The process has ended.
	}
	h := Hint{Commands: []Command{{Process: fmt.Sprintf("%d-%s", tid, p.start), Dir: p.dir}}}
	return true, true, s.fetch(ctx, h, []object.ID{id})
}

// Lists reports whether the process of the thread tid is to find objects when it lists a directory of loose objects.
func (s *Server) Lists(tid uint32) bool { return s.existence.lists(tid) }

// List returns the names of the objects in one directory of loose objects: that of the ids whose first byte is first.
// The names omit the first two digits of the ids.
func (s *Server) List(first byte) []string { return s.existence.list(first) }
