package meter

import (
	"fmt"
	"time"

	"github.com/artifactfs/artifactfs/server/records"
)

const (
	refusedTime = time.Minute
	maxRefused  = 60  // entries without a token in refusedTime
	maxUnproved = 256 // bytes of a path in such an entry
)

// refused limits the audit entries of requests without a valid token, which anyone can send: the first ones of each
// minute are entries, and the others are counted in one more. git asks without a token first, so such requests are also
// part of most fetches and pushes.
type refused struct {
	begin   time.Time // of the present minute
	entries int
	more    int // requests without an entry
	last    int // status of the last one of them
}

// add reports whether a request gets an entry.
func (r *refused) add(e records.AuditEntry) bool {
	if r.begin.IsZero() {
		r.begin = e.Time
	}
	if r.entries++; r.entries <= maxRefused {
		return true
	}
	r.more++
	r.last = e.Result
	return false
}

// rest ends the minute if it is over, or if there is no later call. It returns the entry about the requests that got
// none.
func (r *refused) rest(now time.Time, end bool) (rest records.AuditEntry, ok bool) {
	if age := now.Sub(r.begin); age >= 0 && age < refusedTime && !end {
		return rest, false
	}
	if ok = r.more > 0; ok {
		detail := fmt.Sprintf("%d more requests without a valid token since %s", r.more, r.begin.UTC().Format(time.RFC3339))
		rest = records.AuditEntry{Time: now, Result: r.last, Detail: detail}
	}
	*r = refused{}
	return rest, ok
}
