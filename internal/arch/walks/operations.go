package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// operation is an operation whose walk is measured. Runs are numbered from 0; run 0 is the warm-up.
type operation struct {
	name, what string
	prepare    func(r *rig, run int) error // sets up the state that do needs; nil if none is needed
	// carries out the operation; background work of the daemon may continue when do returns
	do    func(r *rig, run int) error
	after func(r *rig, run int) error // checks the result and cleans up; nil if nothing is to be done
}

var operations = []operation{
	{"read", "read of a file whose content was not fetched", countFetched, readFile, hasFetched},
	{"write", "two lines are appended to a tracked file that was read", readOther, writeFile, nil},
	{"commit", "git commit -a, until it is on the session remote", editForCommit, commitFile, isPushed},
	{"checkpoint", "artifactfs checkpoint of one changed file, until it is on the session remote", editForCheckpoint,
		makeCheckpoint, isPushed},
	{"restore", "artifactfs session restore of one file, whose state before is in a checkpoint", saveTwice,
		restoreSession, isRestored},
	{"fork", "artifactfs session fork of a checkpoint", saveAndEdit, forkSession, unmountFork},
}

func operationNames() (names []string) {
	for _, op := range operations {
		names = append(names, op.name)
	}
	return names
}

// These constants are the numbers of the folders that run 0 of an operation uses. Each read uses a folder of its own,
// because a read also fetches neighbours of the file.
const (
	foldersOfReads       = 0
	foldersOfWrites      = 5
	foldersOfCommits     = 10
	foldersOfSaves       = 15
	foldersOfCheckpoints = 20
)

// readFile reads one file of a folder of the mount.
func (r *rig) readFile(folder int) error {
	text, err := os.ReadFile(filepath.Join(r.mnt, file(folder, 1)))
	if err == nil && len(text) < 500 {
		return fmt.Errorf("read %s: %d bytes, want more than 500", file(folder, 1), len(text))
	}
	return err
}

// edit appends a line to one file of a folder of the mount.
func (r *rig) edit(folder int) (err error) {
	f, err := os.OpenFile(filepath.Join(r.mnt, file(folder, 1)), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString("edited\nagain\n")
	return err
}

// countFetched stores in r.fetched how many contents were fetched until now. It is called before a read.
func countFetched(r *rig, _ int) error {
	s, err := r.status()
	r.fetched = s.Blobs.Fetched
	return err
}

// hasFetched returns an error if nothing was fetched since countFetched was called.
func hasFetched(r *rig, _ int) error {
	s, err := r.status()
	if err == nil && s.Blobs.Fetched <= r.fetched {
		return errors.New("read file: its contents had been fetched before")
	}
	return err
}

func readFile(r *rig, run int) error      { return r.readFile(foldersOfReads + run) }
func readOther(r *rig, run int) error     { return r.readFile(foldersOfWrites + run) }
func writeFile(r *rig, run int) error     { return r.edit(foldersOfWrites + run) }
func editForCommit(r *rig, run int) error { return r.edit(foldersOfCommits + run) }

// commitFile commits a change, and waits until a ref of the session remote has changed.
func commitFile(r *rig, run int) error {
	before, err := r.refs()
	if err != nil {
		return err
	}
	if _, err := r.run("git", "-C", r.mnt, "commit", "-q", "-a", "-m", fmt.Sprint("commit ", run)); err != nil {
		return err
	}
	for deadline := time.Now().Add(r.idle); ; time.Sleep(quietPoll / 10) {
		after, err := r.refs()
		if err != nil || after != before {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("push commit: session remote has not received it after %v", r.idle)
		}
	}
}

// refs returns the refs of the session remote.
func (r *rig) refs() (string, error) { return r.run("git", "-C", r.remote(), "for-each-ref") }

// isPushed returns an error if the session has refs that it has not pushed to the session remote.
func isPushed(r *rig, _ int) error {
	s, err := r.status()
	if err == nil && s.Session.Pending > 0 {
		return fmt.Errorf("push session: session remote lacks %d refs", s.Session.Pending)
	}
	return err
}

// saveAndEdit makes a checkpoint, and then changes a file.
func saveAndEdit(r *rig, run int) error {
	if err := r.edit(foldersOfSaves + run); err != nil {
		return err
	}
	id, err := r.run(r.afs(), "checkpoint", "--sync", r.mnt)
	if err != nil {
		return err
	}
	r.saved = id
	return r.edit(foldersOfSaves + run)
}

func editForCheckpoint(r *rig, run int) error { return r.edit(foldersOfCheckpoints + run) }

func makeCheckpoint(r *rig, _ int) error {
	_, err := r.run(r.afs(), "checkpoint", r.mnt)
	return err
}

// saveTwice makes a checkpoint, changes a file and makes another checkpoint, as the daemon does by itself two seconds
// after a change unless this is turned off. A restore then makes no checkpoint, which would be pushed.
func saveTwice(r *rig, run int) error {
	if err := saveAndEdit(r, run); err != nil {
		return err
	}
	_, err := r.run(r.afs(), "checkpoint", "--sync", r.mnt)
	return err
}

func restoreSession(r *rig, _ int) error {
	_, err := r.run(r.afs(), "session", "restore", "-C", r.mnt, r.saved)
	return err
}

// isRestored returns an error if the file still has the change that was made after the checkpoint.
func isRestored(r *rig, run int) error {
	info, err := os.Stat(filepath.Join(r.mnt, file(foldersOfSaves+run, 1)))
	if err != nil {
		return err
	}
	changed, err := os.Stat(filepath.Join(r.mnt, file(foldersOfSaves+run, 2)))
	if err == nil && info.Size()-changed.Size() > 20 {
		return fmt.Errorf("restore %s: file still has the later change", info.Name())
	}
	return err
}

func (r *rig) fork(run int) string { return filepath.Join(r.tmp, fmt.Sprint("fork", run)) }

func forkSession(r *rig, run int) error {
	_, err := r.run(r.afs(), append([]string{"session", "fork", "-C", r.mnt, "--session", fmt.Sprint("fork", run),
		r.saved, r.fork(run)}, quiet...)...)
	return err
}

func unmountFork(r *rig, run int) error {
	if _, err := os.Stat(filepath.Join(r.fork(run), file(0, 1))); err != nil {
		return err
	}
	_, err := r.run(r.afs(), "unmount", "--detach", r.fork(run))
	return err
}

// measure runs each operation several times and returns the functions that each run entered, except for the warm-up
// runs.
func (r *rig) measure(chosen []operation) (map[string][]byRole, error) {
	progress("warming up")
	for _, op := range chosen {
		if err := r.oneRun(op, 0, func() error {
			err := op.do(r, 0)
			time.Sleep(quietPolls * quietPoll) // the background work is not known yet
			return err
		}); err != nil {
			return nil, err
		}
	}
	if err := r.rest(); err != nil {
		return nil, err
	}
	walks := map[string][]byRole{}
	for _, op := range chosen {
		for run := 1; run <= runs; run++ {
			var got byRole
			err := r.oneRun(op, run, func() (err error) {
				got, err = r.watch(func() error { return op.do(r, run) })
				return err
			})
			if err != nil {
				return nil, err
			}
			progress("%s: %d functions", op.name, len(got.all()))
			walks[op.name] = append(walks[op.name], got)
		}
	}
	return walks, nil
}

// oneRun prepares a run of an operation, waits until the daemon does only background work, calls do, and cleans up.
func (r *rig) oneRun(op operation, run int, do func() error) error {
	var err error
	if op.prepare != nil {
		err = op.prepare(r, run)
	}
	if err == nil && run > 0 {
		_, err = r.settle(time.Now())
	}
	if err == nil {
		err = do()
	}
	if err == nil && op.after != nil {
		err = op.after(r, run)
	}
	if err == nil && run > 0 {
		_, err = r.settle(time.Now())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op.name, err)
	}
	return nil
}

// rest observes the idle daemon and a trivial command, and stores in r the background work that is left out of the
// results.
func (r *rig) rest() error {
	progress("waiting for what the warm-up has left to do")
	time.Sleep(r.idle / 2)
	progress("measuring the idle interval")
	if _, err := r.entered(); err != nil {
		return err
	}
	if _, err := r.ended(); err != nil {
		return err
	}
	var parts [3]walk
	for i := range parts {
		parts[i] = walk{}
		for start := time.Now(); time.Since(start) < r.idle/time.Duration(len(parts)); {
			time.Sleep(quietPoll)
			got, err := r.entered()
			if err != nil {
				return err
			}
			parts[i].add(got)
		}
	}
	idle := repeated(parts)
	r.seen = walk{}
	for _, part := range parts {
		r.seen.add(part)
	}
	progress("%d functions of the daemon are background work", len(idle))
	if _, err := r.run(r.afs(), "version"); err != nil {
		return err
	}
	every, err := r.ended()
	r.background = byRole{daemon: idle, command: every}
	return err
}

// watch calls do, waits until the daemon does only background work, and returns the functions that were entered, apart
// from background work.
func (r *rig) watch(do func() error) (byRole, error) {
	if _, err := r.entered(); err != nil {
		return nil, err
	}
	if _, err := r.ended(); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := do(); err != nil {
		return nil, err
	}
	served, err := r.settle(start)
	if err != nil {
		return nil, err
	}
	ended, err := r.ended()
	return byRole{daemon: served, command: ended.without(r.background[command])}, err
}

// settle waits until the daemon enters only background work, and returns the other functions that it has entered since
// its counters were set to zero. It returns an error if this takes longer than r.idle, counted from start.
func (r *rig) settle(start time.Time) (walk, error) {
	all := walk{}
	for calm := 0; calm < quietPolls; calm++ {
		if err := r.ctx.Err(); err != nil {
			return nil, err
		}
		time.Sleep(quietPoll)
		got, err := r.entered()
		if err != nil {
			return nil, err
		}
		all.add(got.without(r.background[daemon]))
		if len(got.without(r.seen)) > 0 {
			calm = -1
		}
		if calm < 0 && time.Since(start) > r.idle {
			return nil, fmt.Errorf("wait for the daemon to do only background work: time of %v has passed (flag -idle)", r.idle)
		}
	}
	return all, nil
}
