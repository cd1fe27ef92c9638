// Package capture makes points of a mount: it asks the working tree what changed, makes trees and blobs of that, reads
// what git has beside the files, and keeps it all in the session's repository.
package capture

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/session"
	"github.com/artifactfs/artifactfs/worktree"
)

// DefaultMaxFileSize is the size in bytes over which new files are left out, if nothing else is said.
const DefaultMaxFileSize = 50 << 20

// Rules say which files points hold that git does not track.
type Rules struct {
	Include     []string // globs of ignored or denied paths that are held all the same
	Exclude     []string // globs of paths that are left out
	NoDenyList  bool     // paths that look like secrets are held
	MaxFileSize int64    // larger new files are left out, in bytes; 0: DefaultMaxFileSize
}

// Options describe a Capturer.
type Options struct {
	Tree      *worktree.Tree
	WriteBack func(ctx context.Context) error // brings what the kernel has to the Tree; nil: it has nothing
	GitDir    string                          // the mount's git directory
	WorkTree  string                          // where it is mounted, for stock git; it is not looked at
	Repo      *session.Repo
	Memory    string    // file that remembers where the last point ended, so that the next one goes on from there
	Lane      string    // "": "main"
	Base      object.ID // commit that the session began with, which the mounted remote has; zero: unborn
	BaseTree  object.ID // the Tree's base; zero: empty
	Rules     Rules
	// Converts says whether git converts the file at a path, so that its blob is not what the file holds; nil: never.
	Converts func(path string) bool
	Log      *zap.Logger // nil: no log
}

// LeftOut is a path that a point does not hold; of a directory (with a slash behind) nothing below it is held.
type LeftOut struct {
	Path string
	Why  Why
	Size int64 // bytes, of a file
}

// Why says why a path was left out.
type Why string

const (
	Ignored  Why = "ignored"  // git ignores it
	Secret   Why = "secret"   // it looks like one
	Excluded Why = "excluded" // a glob says so
	TooLarge Why = "size"     // it is over MaxFileSize
	NoFile   Why = "type"     // git keeps no fifos, sockets, devices and repositories in repositories
)

// Report tells of the making of a point.
type Report struct {
	Made   bool      // false: nothing has changed, and the point is the one before
	Left   []LeftOut // the first of Point.Left, at most a hundred
	Paused time.Duration
	Took   time.Duration
}

// Capturer makes the points of one mount. Its methods may be called from many goroutines; one point is made at a time.
type Capturer struct{}

// New goes on from the newest point of the lane.
func New(o Options) (*Capturer, error) { return nil, errors.ErrUnsupported }

// Point makes a point of what is there now, or gives the newest one if nothing has changed since. When it returns the
// point is on disk.
func (c *Capturer) Point(ctx context.Context, reason session.Reason, message string) (session.Point, Report, error) {
	return session.Point{}, Report{}, errors.ErrUnsupported
}

// Last is the newest point of the lane; false: there is none.
func (c *Capturer) Last() (session.Point, bool) { return session.Point{}, false }

// SetLane makes the next point begin a segment of its own, in that lane.
func (c *Capturer) SetLane(lane string) {}
