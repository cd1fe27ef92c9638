package control

import (
	"slices"
	"strings"
	"time"
)

// Policy states when checkpoints are made automatically: "off", "idle", "before-risk", or "interval=" followed by a
// duration in the format of time.ParseDuration.
type Policy string

const (
	PolicyOff        Policy = "off"
	PolicyIdle       Policy = "idle"        // a checkpoint is made when no file was written for a while
	PolicyBeforeRisk Policy = "before-risk" // a checkpoint is made before a git command that may discard changes
	// prefix of "interval=DURATION": a checkpoint is made at this interval if something has changed
	PolicyInterval Policy = "interval="
)

// minInterval and maxInterval are the limits for the interval of PolicyInterval. A value outside of these limits is
// refused, because it is probably a typing error.
const minInterval, maxInterval = time.Second, 30 * 24 * time.Hour

// minLease is the minimum of SessionOptions.Lease, because signs of life are sent three times within a lease.
// maxIdentity is the maximum length of SessionOptions.Identity in bytes.
const minLease, maxIdentity = 3 * time.Second, 200

// Split returns the kind of the policy. For PolicyInterval it also returns the interval.
func (p Policy) Split() (kind Policy, every time.Duration, err error) {
	switch p {
	case PolicyOff, PolicyIdle, PolicyBeforeRisk:
		return p, 0, nil
	}
	text, ok := strings.CutPrefix(string(p), string(PolicyInterval))
	if !ok {
		return "", 0, badRequest("unknown checkpoint policy %.40q: want off, idle, before-risk or interval=DURATION", p)
	}
	every, parseErr := time.ParseDuration(text)
	if parseErr != nil || every < minInterval || every > maxInterval {
		return "", 0, badRequest("invalid checkpoint interval %.40q: want a duration from %v to %v, such as 5m", text,
			minInterval, maxInterval)
	}
	return PolicyInterval, every, nil
}

func (o SessionOptions) validate() error {
	if o.Policy != "" {
		if _, _, err := o.Policy.Split(); err != nil {
			return err
		}
	}
	if o.Base != "" && !slices.Contains(BaseModes, o.Base) {
		return badRequest("unknown base %.40q of a session: want auto, thin, shared or seed", o.Base)
	}
	if o.MaxFileSize < 0 {
		return badRequest("size is negative")
	}
	if o.Lease != 0 && (o.Lease < minLease || o.Lease > maxInterval) {
		return badRequest("invalid lease %v of a session: want a duration from %v to %v, such as 15m", o.Lease,
			minLease, maxInterval)
	}
	if len(o.Identity) > maxIdentity {
		return badRequest("identity has %d bytes, want at most %d", len(o.Identity), maxIdentity)
	}
	return nil
}

// Values of SessionOptions.Remote that are neither a URL nor a path.
const (
	RemoteEmbedded = "embedded" // a bare repository below the state directory; the default
	RemoteOrigin   = "origin"   // the mounted remote
	RemoteNone     = "none"     // no checkpoints are made, and nothing is pushed
)

// BaseMode states how a session remote gets the history of the mounted repository.
type BaseMode string

const (
	// BaseAuto selects BaseShared if the session remote has the history, BaseThin if the session remote is empty and the
	// mounted remote is a network URL, and BaseSeed otherwise.
	BaseAuto   BaseMode = "auto"
	BaseThin   BaseMode = "thin"   // the history is not pushed: the session refers to it by URL and commit
	BaseShared BaseMode = "shared" // the session remote must contain the history; if it does not, pushing fails
	BaseSeed   BaseMode = "seed"   // the history is pushed to the session remote if the session remote lacks it
)

// BaseModes lists all values of BaseMode.
var BaseModes = []BaseMode{BaseAuto, BaseThin, BaseShared, BaseSeed}

// SessionOptions determine what is stored in the checkpoints of a mount, when they are made, and where they are pushed.
type SessionOptions struct {
	// Remote is the session remote: a URL or path (which may contain a secret and is never logged), "embedded", "origin"
	// or "none".
	Remote string `json:"remote,omitempty"`
	// Policy states when checkpoints are made: "off", "idle", "before-risk" or "interval=DURATION"; "": "idle".
	Policy Policy `json:"policy,omitempty"`
	// how the session remote gets the history: "auto", "thin", "shared" or "seed"; "": "auto"
	Base BaseMode `json:"base,omitempty"`
	// pattern of branch names on the session remote, "as-is", or "" for the default
	Branches string `json:"branches,omitempty"`
	TakeOver bool   `json:"take_over,omitempty"` // resume the session even if another machine holds its claim
	// Lease is the time after the last sign of life of this machine after which another machine may resume the session
	// without TakeOver; 0: 15 minutes
	Lease time.Duration `json:"lease_ns,omitempty"`
	// Identity is a name that only one running sandbox has at a time, such as the name of a container. A mount with the
	// same name resumes the session without TakeOver.
	Identity string `json:"identity,omitempty"`

	// Include are globs of paths that checkpoints contain although they are ignored or look like secrets.
	Include    []string `json:"include,omitempty"`
	Exclude    []string `json:"exclude,omitempty"`      // globs of further paths that checkpoints leave out
	NoDenyList bool     `json:"no_deny_list,omitempty"` // checkpoints also contain paths that look like secrets
	// maximum size of new files in checkpoints, in bytes; 0: the default
	MaxFileSize int64 `json:"max_file_size,omitempty"`
}

// elsewhere reports whether the session remote is a URL or path, which other machines may also be able to reach.
func (o SessionOptions) elsewhere() bool {
	switch o.Remote {
	case "", RemoteEmbedded, RemoteOrigin, RemoteNone:
		return false
	}
	return true
}
