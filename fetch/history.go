package fetch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/pipeline"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/internal/packedrefs"
	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/transport"
)

// History is how much of the remote's history is on this host.
type History string

const (
	Shallow   History = "shallow"   // the newest commits only
	Deepening History = "deepening" // the rest is being fetched
	Complete  History = "complete"  // every commit that the refs of the remote reach
)

// maxHistoryWait bounds how long busy readers delay the fetch of history.
const maxHistoryWait = 30 * time.Second

// lockPoll is how often a process checks whether another has released a lock of the store.
const lockPoll = 200 * time.Millisecond

// The boundary file lists the commits without their parents in the store. Before history is
// fetched, git's `shallow` file has the same contents, so that git's own commands work in the
// store. Afterwards `shallow` is removed for good: a later acquisition is connected to the history
// by a fetch with haves.
func (s *Store) boundaryFile() string { return filepath.Join(s.dir, "boundary") }

// shallowFile returns the path of the file in which git looks for commits without parents.
func (s *Store) shallowFile() string { return filepath.Join(s.GitDir(), "shallow") }

// refsFile returns the path of the packed refs; their existence shows that history was completed.
func (s *Store) refsFile() string { return filepath.Join(s.GitDir(), "packed-refs") }

// Boundary returns the commits whose parents are not in the store. git calls such commits shallow.
func (s *Store) Boundary() []object.ID { return readIDs(s.boundaryFile()) }

// readIDs returns the ids in a file with one id per line. Lines that are not ids are skipped, and a
// missing file has none.
func readIDs(path string) []object.ID {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var ids []object.ID
	for _, line := range strings.Fields(string(content)) {
		if id, err := object.ParseID(line); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// idLines returns ids with one per line, as readIDs and git's shallow file expect.
func idLines(ids []object.ID) []byte {
	var text strings.Builder
	for _, id := range ids {
		text.WriteString(id.String())
		text.WriteByte('\n')
	}
	return []byte(text.String())
}

// addBoundary adds the commits at which an acquisition ended.
func (s *Store) addBoundary(ids []object.ID) error {
	return s.changeBoundary(func(old []object.ID) []object.ID { return append(old, ids...) })
}

// changeBoundary rewrites the boundary, without the commits whose parents are all in the store.
func (s *Store) changeBoundary(change func([]object.ID) []object.ID) error {
	// Several processes may acquire commits of the same remote: the lock makes reading, changing
	// and writing one step.
	unlock, err := disk.Lock(s.boundaryFile() + ".lock")
	if err != nil {
		return fmt.Errorf("record boundary: %w", err)
	}
	defer unlock()
	ids := change(s.Boundary())
	slices.SortFunc(ids, object.ID.Compare)
	ids = slices.DeleteFunc(slices.Compact(ids), s.hasParents)
	// The boundary is written before git's shallow file: after a crash between the two, the next
	// change writes both.
	if err := disk.WriteFile(s.boundaryFile(), idLines(ids), 0o600); err != nil {
		return fmt.Errorf("record boundary: %w", err)
	}
	if s.historyComplete() || len(ids) == 0 {
		err = os.Remove(s.shallowFile())
	} else {
		err = disk.WriteFile(s.shallowFile(), idLines(ids), 0o644)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record boundary: %w", err)
	}
	return nil
}

// hasParents reports whether a commit is in the store with all of its parents. Such a
// commit does not belong in the boundary.
func (s *Store) hasParents(commit object.ID) bool {
	_, content, err := s.objects.Get(commit, object.MaxCommitSize)
	if err != nil {
		return false
	}
	info, err := object.ParseCommit(commit.Format(), content)
	if err != nil {
		return false
	}
	for _, p := range info.Parents {
		if !s.objects.Has(p) {
			return false
		}
	}
	return true
}

// historyComplete reports whether the store's refs were ever written, which is the last step of
// fetching history.
func (s *Store) historyComplete() bool {
	_, err := os.Stat(s.refsFile())
	return err == nil
}

// maxHaves bounds the haves of one request.
const maxHaves = 64

// completeTips returns commits whose whole history is in the store: the branches of the remote when
// history was last completed.
func (s *Store) completeTips() []object.ID {
	content, err := os.ReadFile(s.refsFile())
	if err != nil {
		return nil
	}
	var ids []object.ID
	for line := range strings.Lines(string(content)) {
		hex, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if id, err := object.ParseID(hex); err == nil && strings.HasPrefix(name, "refs/heads/") && len(ids) < maxHaves {
			ids = append(ids, id)
		}
	}
	return ids
}

// Deepen fetches the whole history of all branches and tags, without blobs. One process at a time does so for a store; others
// wait for it. While readers wait for the remote, of which there are many just after a mount, Deepen waits for at most
// maxHistoryWait, or until urgent returns true.
func (s *Store) Deepen(ctx context.Context, urgent func() bool) error {
	s.setHistory(Deepening)
	busy := func() bool { return !urgent() && s.blobPipe.Busy() }
	err := pipeline.WaitWhile(ctx, maxHistoryWait, busy)
	if err == nil {
		err = s.blobPipe.Retry(ctx, nil, func() error {
			return s.blobPipe.RequestObject(ctx, object.ID{}, func() error { return s.deepen(ctx, busy) })
		})
	}
	if err != nil {
		s.setHistory(Shallow)
		return fmt.Errorf("fetch history: %w", err)
	}
	s.setHistory(Complete)
	return nil
}

// setHistory records the state that Stats returns.
func (s *Store) setHistory(h History) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = h
}

// deepen fetches the history while it holds a lock that excludes other processes. busy reports whether readers wait; the
// reading of the pack pauses for them.
func (s *Store) deepen(ctx context.Context, busy func() bool) error {
	unlock, err := lockPatiently(ctx, filepath.Join(s.dir, "history.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	// Another process may have fetched the history while this one waited for the lock.
	if err := s.objects.Refresh(); err != nil {
		return err
	}
	caps, err := s.remote.Capabilities(ctx)
	if errors.Is(err, transport.ErrNoV2) {
		if err := s.deepenWithGit(ctx, false); err != nil {
			return err
		}
		s.writeCommitGraph(ctx)
		return nil
	}
	if err != nil {
		return err
	}
	refs, err := s.remote.Refs(ctx, []string{"HEAD", "refs/heads/", "refs/tags/"})
	if err != nil {
		return err
	}
	// Nothing is missing if all tips exist and no commit lacks its parents: the whole history was
	// fetched at once.
	missing := s.missingTips(refs)
	switch {
	case len(missing) == 0 && len(s.Boundary()) == 0:
	case s.historyComplete():
		err = s.deepenWithGit(ctx, caps.Filter)
	default:
		err = s.fetchHistory(ctx, caps, refs, busy)
	}
	if err != nil {
		return err
	}
	// The refs are written last: their file marks the history as complete.
	if err := s.writeRefs(refs); err != nil {
		return err
	}
	if err := s.changeBoundary(func(old []object.ID) []object.ID { return old }); err != nil {
		return err
	}
	s.writeCommitGraph(ctx)
	return nil
}

// writeCommitGraph runs git commit-graph. Without the file that this command writes, git log parses every commit. A failure is
// only logged.
func (s *Store) writeCommitGraph(ctx context.Context) {
	if _, err := runGit(ctx, s.GitDir(), remoteAccess{}, "commit-graph", "write", "--reachable"); err != nil {
		s.log.Warn("commit-graph not written: git log will be slower", zap.Error(err))
	}
}

// lockPatiently acquires a lock that another process may hold for long. It waits until ctx ends.
func lockPatiently(ctx context.Context, path string) (unlock func(), err error) {
	for {
		unlock, err := disk.TryLock(path)
		if !errors.Is(err, disk.ErrLocked) {
			return unlock, err
		}
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// missingTips returns the commits of refs that are not in the store.
func (s *Store) missingTips(refs transport.Refs) []object.ID {
	var ids []object.ID
	for _, r := range refs.List {
		if !s.objects.Has(r.ID) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// fetchHistory fetches everything that the refs reach in one pack, as a clone would. It sends no haves, because they would
// increase the remote's work about tenfold.
func (s *Store) fetchHistory(ctx context.Context, caps transport.Capabilities, refs transport.Refs, busy func() bool) error {
	seen := map[object.ID]bool{}
	req := transport.FetchRequest{}
	for _, r := range refs.List {
		if !seen[r.ID] {
			seen[r.ID] = true
			req.Wants = append(req.Wants, r.ID)
		}
	}
	if len(req.Wants) == 0 {
		return nil
	}
	if caps.Filter {
		req.Filter = "blob:none"
	}
	resp, err := s.request(ctx, req)
	if err != nil {
		return err
	}
	defer resp.Pack.Close()
	// The pack may be large. While readers wait it is not read, so that TCP slows the remote down.
	paused := readerFunc(func(p []byte) (int, error) {
		if err := pipeline.WaitWhile(ctx, pipeline.MaxPause, busy); err != nil {
			return 0, err
		}
		return resp.Pack.Read(p)
	})
	if err := s.ingest(ctx, paused, nil); err != nil {
		return err
	}
	return s.addBoundary(resp.Shallow) // the remote is a shallow repository
}

// writeRefs sets the store's refs to those of the remote.
func (s *Store) writeRefs(refs transport.Refs) error {
	head := ""
	var list []packedrefs.Ref
	for _, r := range refs.List {
		if r.Name == "HEAD" {
			head = r.Target
			continue
		}
		list = append(list, packedrefs.Ref{Name: r.Name, ID: r.ID, Peeled: r.Peeled})
	}
	// Refs in memory are set first: the refs in memory are right even if the disk is full.
	s.setRefs(list)
	if err := disk.WriteFile(s.refsFile(), packedrefs.Encode(nil, list), 0o644); err != nil {
		return fmt.Errorf("write refs: %w", err)
	}
	if head == "" {
		return nil
	}
	if err := disk.WriteFile(filepath.Join(s.GitDir(), "HEAD"), []byte("ref: "+head+"\n"), 0o644); err != nil {
		return fmt.Errorf("write refs: %w", err)
	}
	return nil
}

// setRefs replaces the refs that Refs returns. The caller must not change list afterwards.
func (s *Store) setRefs(list []packedrefs.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refs = list
}

// Refs returns the remote's branches and tags as of the last time that history was completed.
func (s *Store) Refs() []packedrefs.Ref {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refs
}

// DefaultBranch returns the full name of the remote's HEAD branch as of the last time that history
// was completed; "" if it is not known.
func (s *Store) DefaultBranch() string {
	text, err := os.ReadFile(filepath.Join(s.GitDir(), "HEAD"))
	name, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "ref: ")
	if err != nil || !ok || len(s.Refs()) == 0 { // until then HEAD is as git init wrote it
		return ""
	}
	return name
}
