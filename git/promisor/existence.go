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

// git checks that the blobs of a tree exist before it writes the tree (commit, merge, stash, checkout). A blob that the promisor
// remote can supply exists, so these checks need no request. git makes them in two ways: for each blob that is not in a pack, it
// calls lstat on the path of a loose object, and before that, to fetch all missing blobs with one request, it lists the directories
// of loose objects (cache_tree_update; OBJECT_INFO_QUICK). existence answers both questions for the directory in which package fuse
// shows the objects. A process that opens an object gets no contents there, and therefore sends a request for it.
//
// The answer depends on the process:
//   - The git fetch with which git requests objects must not find them, because it does not request objects that exist.
//   - Commands that write trees find the blobs of the shown tree in listings. For other commands listings are empty, because these
//     commands request the contents of all blobs at once that a listing lacks.
//   - Programs other than git cannot request objects, so they get the contents. They find nothing in listings.
//   - git fsck and git pack-objects find nothing, and neither do this program, the git commands that it runs, and processes that cannot
//     be identified: this program has to know which contents are on this host.
//   - A process that has opened an object, and got no contents, does not find it any more. If the request for the object has failed too,
//     git would report a loose object that exists as corrupt.
type existence struct {
	provider Provider
	shown    Shown

	mu     sync.Mutex
	last   checker              // process that has asked last
	asked  map[uint32]object.ID // the object for which a thread has asked last
	opened map[uint32]object.ID // the object that a thread has opened last
	listed listed
}

// Shown is the tree that the mount shows.
type Shown interface {
	// Shown returns the id of the tree.
	Shown() object.ID
	// Blobs calls visit for all blobs of the tree whose trees are on this host. It does not wait.
	Blobs(visit func(object.ID))
}

// listed contains the blobs of a tree.
type listed struct {
	tree  object.ID
	names [256][]string // the digits of the ids without the first two, by the first byte
	drop  *time.Timer   // drops the names when no process has asked for listTime
}

const (
	// callerTime is the time for which the kind of a process is known without reading its arguments again. It is so short that another
	// process does not get the same id in this time.
	callerTime = 50 * time.Millisecond
	// listTime is the time after which the names of a tree's blobs are dropped from memory.
	listTime = 10 * time.Second
)

// kind is the kind of a process that asks for the existence of objects.
type kind int

const (
	excluded   kind = iota // a process that finds nothing
	program                // a program other than git
	gitCommand             // a git command that writes no trees
	treeWriter             // a git command that may write trees
)

// checker is a process that has asked.
type checker struct {
	id   uint32 // of the thread
	kind kind
	at   time.Time
}

// treeWriters are the git commands that check a whole tree before they write one, and that need the contents of few blobs of the tree
// from which they start. reset does not check, and needs all contents in a new linked worktree.
var treeWriters = []string{"commit", "write-tree", "stash", "merge", "pull", "rebase", "cherry-pick", "revert", "am", "checkout", "switch"}

// readers are the git commands for which an object exists only if they can read it: fsck requests no objects, and pack-objects leaves
// out loose objects of alternates.
var readers = []string{"fsck", "pack-objects"}

// kindOf returns the kind of the process of a thread. The checker holds mu.
func (e *existence) kindOf(tid uint32) kind {
	if e.last.id == tid && time.Since(e.last.at) < callerTime {
		return e.last.kind
	}
	k := excluded
	args, err := proc.Of(int(tid)).Args()
	executable, exeErr := proc.Of(int(tid)).Executable()
	stat, statErr := proc.Of(int(tid)).Stat()
	if errors.Join(err, exeErr, statErr) == nil && len(args) > 0 && executable != ownExecutable() && stat.Parent != os.Getpid() {
		k = kindByArgs(args)
	}
	e.last = checker{tid, k, time.Now()}
	return k
}

// ownExecutable returns the path of this program.
var ownExecutable = sync.OnceValue(func() string { path, _ := proc.Self.Executable(); return path })

// kindByArgs returns the kind of a process with these arguments, the first of which is the program.
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
	}
	return gitCommand
}

// find reports whether the process of the thread tid finds a blob, and whether it gets the contents.
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

// noteOpened records that the thread tid has opened the object for which it has asked last.
func (e *existence) noteOpened(tid uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id, ok := e.asked[tid]; ok {
		remember(&e.opened, tid, id)
	}
}

// remember sets the object of a thread. It forgets all threads when there are more than maxAskers.
func remember(of *map[uint32]object.ID, tid uint32, id object.ID) {
	if *of == nil || len(*of) > maxAskers {
		*of = map[uint32]object.ID{}
	}
	(*of)[tid] = id
}

// lists reports whether the process of the thread tid finds the blobs of the shown tree in listings.
func (e *existence) lists(tid uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kindOf(tid) == treeWriter
}

// list returns the names in the listing of the directory of the ids that begin with the byte first.
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

// drop drops the names from memory.
func (e *existence) drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listed = listed{}
}

// Find reports whether the process of the thread tid is to find a blob, and whether it is to get the contents. In that case, Find
// fetches them, and those that the process will probably need next.
func (s *Server) Find(ctx context.Context, tid uint32, id object.ID) (found, contents bool, err error) {
	found, contents, err = s.existence.find(ctx, tid, id)
	if err != nil || !found || !contents || len(s.provider.Missing([]object.ID{id})) == 0 {
		return found, contents, err
	}
	p, err := readProcess(int(tid))
	if err != nil {
		return false, false, nil // the process has ended
	}
	h := Hint{Commands: []Command{{Process: fmt.Sprintf("%d-%s", tid, p.start), Dir: p.dir}}}
	return true, true, s.fetch(ctx, h, []object.ID{id})
}

// Opened records that the process of the thread tid has opened the object for which Exists was called last for this thread.
func (s *Server) Opened(tid uint32) { s.existence.noteOpened(tid) }

// Lists reports whether the process of the thread tid finds objects when it lists a directory of loose objects.
func (s *Server) Lists(tid uint32) bool { return s.existence.lists(tid) }

// List returns the names of the objects in the listing of the directory of loose objects whose ids begin with the byte first. The
// names lack the first two digits.
func (s *Server) List(first byte) []string { return s.existence.list(first) }
