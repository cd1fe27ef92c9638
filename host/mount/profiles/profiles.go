// Package profiles records which files programs read in a mount, and determines the read profile that the mount
// prefetches.
//
// A recording begins with the mount, and ends when no program has read a new file for Options.Idle, after
// Options.Limit, when readprofile.MaxPaths paths were recorded, or at unmount. It is then merged into the profile in
// the directory of the store and, if the mount shares its profile, into the ref refs/afs/profile/NAME of the session
// remote. Until then, a file in the home of the mount contains the paths that were recorded so far: a successor of this
// process continues the recording, and a later mount of the same session merges a recording whose mount has died.
package profiles

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/fetch/readprofile"
	"github.com/artifactfs/artifactfs/git/transport"
	"github.com/artifactfs/artifactfs/internal/disk"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/session/reffile"
)

const (
	// DefaultIdle and DefaultLimit are the defaults of Options.Idle and Options.Limit.
	DefaultIdle  = 2 * time.Minute
	DefaultLimit = 30 * time.Minute
	// savePause is the minimum time between two writes of the file with the recording. A successor of a killed process
	// misses the paths that were read after the last write. If writing takes long, the time is savePauseFactor times the
	// duration of the last write.
	savePause       = 200 * time.Millisecond
	savePauseFactor = 20
	// remoteTime is the maximum time for reading a profile from the session remote, and for writing it.
	remoteTime = 5 * time.Second
	// countTime is the maximum time for counting the files of the tree at the end of a recording.
	countTime = time.Second
	// savedPrefix is the first part of the name of the file with a recording. The name of the profile follows.
	savedPrefix = "reads-"
	// fileName is the name of the file with the profile in the tree of a commit on the session remote.
	fileName = "profile"
)

// View is the part of a fetch.RawView that this package uses.
type View interface {
	// Record makes the view record in r which files programs read. If r is nil, nothing is recorded.
	Record(r *readprofile.Recorder)
}

// Options are the options of the read profile of a mount.
type Options struct {
	Name string          // name of the profile
	Dir  readprofile.Dir // directory with the profiles of the store
	Home string          // home of the mount, which contains the file with the recording
	View View
	// CountFiles returns the number of files of the shown tree, but at most limit.
	CountFiles func(ctx context.Context, limit int) (int, error)
	// Remote is the session remote with which the profile is shared; nil if it is not shared.
	Remote *transport.Remote
	Temp   string    // directory for temporary files
	Since  time.Time // time of the start of the mount
	// Idle is the time without a new path after which the recording ends, and Limit the time since the start of the
	// mount. 0 stands for DefaultIdle and DefaultLimit.
	Idle, Limit time.Duration
	Log         *zap.Logger
}

// Profiles is the read profile of one mount, with its recording. All methods of a nil *Profiles do nothing. The methods
// may be called from any goroutine.
type Profiles struct {
	o        Options
	recorder *readprofile.Recorder
	stored   int // number of paths that the file with the recording had when Begin was called
	end      sync.Once

	mu     sync.Mutex
	status readprofile.Usage
	ended  bool // whether the recording has ended
}

// Begin returns the read profile of a mount, and starts the recording. It must be called before programs can read files
// in the mount. If takenOver is true, Begin continues the recording of a predecessor. If there is none, because it has
// ended or an older version has not recorded, Begin records nothing.
func Begin(o Options, takenOver bool) *Profiles {
	if o.Idle == 0 {
		o.Idle = DefaultIdle
	}
	if o.Limit == 0 {
		o.Limit = DefaultLimit
	}
	p := &Profiles{o: o, status: readprofile.Usage{Name: o.Name, Shared: o.Remote != nil},
		recorder: readprofile.NewRecorder(nil)}
	var err error
	if takenOver {
		var saved readprofile.Profile
		if saved, err = readprofile.ReadFile(p.saved()); errors.Is(err, fs.ErrNotExist) {
			p.ended = true
			p.end.Do(func() {})
			return p
		}
		p.recorder, p.stored = readprofile.NewRecorder(pathsOf(saved)), len(saved.Paths)
	} else {
		p.mergeLeftovers()
		err = p.save(time.Now())
	}
	if err != nil {
		o.Log.Warn("start recording of reads", zap.Error(err))
	}
	o.View.Record(p.recorder)
	return p
}

// saved returns the path of the file with the recording.
func (p *Profiles) saved() string { return filepath.Join(p.o.Home, savedPrefix+p.o.Name) }

// pathsOf returns the names of the paths in a profile.
func pathsOf(p readprofile.Profile) (paths []string) {
	for _, path := range p.Paths {
		paths = append(paths, path.Name)
	}
	return paths
}

// mergeLeftovers merges recordings of earlier mounts with the same home, which have died without an unmount, into their
// profiles.
func (p *Profiles) mergeLeftovers() {
	left, _ := disk.Glob(p.o.Home, savedPrefix+"*")
	for _, path := range left {
		name := strings.TrimPrefix(filepath.Base(path), savedPrefix)
		saved, err := readprofile.ReadFile(path)
		if err == nil && !saved.IsZero() {
			err = p.o.Dir.Add(name, readprofile.Recording{Paths: pathsOf(saved), Ended: saved.Recorded})
		}
		if err = errors.Join(err, os.Remove(path)); err != nil {
			p.o.Log.Warn("merge recording of a dead mount", zap.String("file", path), zap.Error(err))
		}
	}
}

// Load returns the profile to prefetch: that of the store or, if the store has none and the mount shares its profile,
// that of the session remote, which is then added to the store. A profile that cannot be read counts as empty.
func (p *Profiles) Load(ctx context.Context) readprofile.Profile {
	if p == nil {
		return readprofile.Profile{}
	}
	const store, sessionRemote = "store", "session-remote"
	source := store
	found, err := p.o.Dir.Read(p.o.Name)
	if err != nil && p.o.Remote != nil {
		source = sessionRemote
		found, err = p.fetch(ctx)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.o.Log.Warn("read profile", zap.String("name", p.o.Name), zap.Error(err))
	}
	if err != nil || found.IsZero() {
		return readprofile.Profile{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Source, p.status.Paths, p.status.Whole = source, int64(len(found.Paths)), found.Whole
	return found
}

// file returns the place of the profile on the session remote.
func (p *Profiles) file() reffile.File {
	return reffile.File{Ref: session.ProfilePrefix + p.o.Name, Name: fileName}
}

// fetch reads the profile from the session remote, which is not trusted, and adds it to the store.
func (p *Profiles) fetch(ctx context.Context) (readprofile.Profile, error) {
	ctx, cancel := context.WithTimeout(ctx, remoteTime)
	defer cancel()
	remote := reffile.Store{Remote: p.o.Remote, Dir: p.o.Temp}
	v, err := remote.Read(ctx, p.file())
	if err != nil || v.Commit.IsZero() {
		return readprofile.Profile{}, err
	}
	found, err := readprofile.Parse(v.Content)
	if err == nil {
		err = p.o.Dir.Adopt(p.o.Name, found)
	}
	return found, err
}

// Run saves the recording in the home until the recording has ended, or until ctx ends. The caller must call End
// afterwards.
func (p *Profiles) Run(ctx context.Context) {
	if p == nil || p.isEnded() {
		return
	}
	saved, pause := p.stored, savePause
	for {
		// An idle mount must not wake its process: wait for a path, or for the end of the recording.
		if n, last := p.recorder.Len(); n == saved {
			select {
			case <-p.recorder.Added():
			case <-time.After(time.Until(p.limit(n, last))):
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		n, last := p.recorder.Len()
		began := time.Now()
		if n > saved {
			if err := p.save(began); err != nil {
				p.o.Log.Warn("save recording", zap.Error(err))
			}
			saved, pause = n, max(savePause, savePauseFactor*time.Since(began))
		}
		if n >= readprofile.MaxPaths || began.After(p.limit(n, last)) {
			p.End(ctx)
			return
		}
	}
}

// limit returns the time at which the recording ends if no further path is added. n is the number of paths, and last
// the time at which the last one was added.
func (p *Profiles) limit(n int, last time.Time) time.Time {
	end := p.o.Since.Add(p.o.Limit)
	if idle := last.Add(p.o.Idle); n > 0 && idle.Before(end) {
		end = idle
	}
	return end
}

// isEnded reports whether the recording has ended.
func (p *Profiles) isEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// save writes the recording into the home, as a profile that has only this recording.
func (p *Profiles) save(now time.Time) error {
	saved := readprofile.Profile{}.Merge(readprofile.Recording{Paths: p.recorder.Paths(), Ended: now})
	return disk.WriteFileUnsynced(p.saved(), saved.Encode(), 0o600)
}

// End ends the recording, and merges it into the profile. Further calls do nothing. If no path was recorded, the
// profile is not changed.
func (p *Profiles) End(ctx context.Context) {
	if p == nil {
		return
	}
	p.end.Do(func() {
		p.o.View.Record(nil)
		n, _ := p.recorder.Len()
		paths := p.recorder.End()
		p.mu.Lock()
		p.ended, p.status.Recorded = true, int64(n)
		p.mu.Unlock()
		if len(paths) > 0 {
			p.merge(ctx, p.recording(ctx, paths))
		}
		if err := os.Remove(p.saved()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.o.Log.Warn("remove recording", zap.Error(err))
		}
	})
}

// recording returns the recording that has the given paths.
func (p *Profiles) recording(ctx context.Context, paths []string) readprofile.Recording {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	limit := 2*len(paths) + 1 // with so many files, a recording of these paths is not Whole
	files, err := p.o.CountFiles(ctx, limit)
	if err != nil { // trees are missing, so the paths cannot be nearly all files
		files = limit
	}
	return readprofile.NewRecording(paths, files, time.Now())
}

// merge merges a recording into the profile in the store and into that on the session remote.
func (p *Profiles) merge(ctx context.Context, r readprofile.Recording) {
	if err := p.o.Dir.Add(p.o.Name, r); err != nil {
		p.o.Log.Warn("store read profile", zap.String("name", p.o.Name), zap.Error(err))
	}
	if p.o.Remote == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, remoteTime)
	defer cancel()
	remote := reffile.Store{Remote: p.o.Remote, Dir: p.o.Temp}
	_, err := remote.Change(ctx, p.file(), "Read profile "+p.o.Name, func(now reffile.Version) ([]byte, error) {
		old, err := readprofile.Parse(now.Content)
		if err != nil { // there is no profile, or a damaged one, which is replaced
			old = readprofile.Profile{}
		}
		return old.Merge(r).Encode(), nil
	})
	if err != nil {
		p.o.Log.Warn("share read profile", zap.String("name", p.o.Name), zap.Error(err))
	}
}

// Status returns the state of the profile and its recording, or nil if the mount has none.
func (p *Profiles) Status() *readprofile.Usage {
	if p == nil {
		return nil
	}
	n, _ := p.recorder.Len()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	if s.Recording = !p.ended; s.Recording {
		s.Recorded = int64(n)
	}
	return &s
}
