package session

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/artifactfs/artifactfs/internal/refname"
	"github.com/artifactfs/artifactfs/object"
)

// FindError reports a name that is not the name of exactly one checkpoint. It wraps ErrNoPoint or ErrAmbiguous.
type FindError struct {
	Name string
	Err  error
}

func (e *FindError) Error() string { return fmt.Sprintf("find checkpoint %.80q: %v", e.Name, e.Err) }

// Unwrap returns ErrNoPoint or ErrAmbiguous.
func (e *FindError) Unwrap() error { return e.Err }

// headName names the checkpoint of the commit that HEAD is.
const headName = "HEAD"

// Find returns the checkpoint that a name means. In this order a name is
//
//	@, @~N      the newest, the Nth before it
//	NAME        a pin
//	HEAD        the first one that was made with the commit that HEAD is in the newest
//	10m, 2h30m  the newest that is at least so old (w, d, h, m, s; no leading zero, which ids begin with)
//	14:05, ...  the newest that is not younger than a time (ParseTime)
//	01M80Q4...  an id, or the beginning of one that no other has
//
// Turns of the transcript are named by package transcript, which calls Find for all other names.
func (r *Repo) Find(name string) (Point, error) {
	if back, ok := strings.CutPrefix(name, "@"); ok || name == "" {
		return r.findBack(name, back)
	}
	for _, ref := range []string{PinPrefix(r.session) + name, AdoptedRef(r.session, PointID(name))} {
		if !refname.Valid(ref) {
			continue
		}
		id, err := r.Ref(ref)
		if err != nil {
			return Point{}, fmt.Errorf("find checkpoint %.80q: %w", name, err)
		}
		if !id.IsZero() {
			return r.PointAt(id)
		}
	}
	if name == headName {
		return r.findHead()
	}
	if at, ok := ParseTime(name, time.Now()); ok {
		return r.findTime(name, at)
	}
	return r.findID(name)
}

func (r *Repo) findBack(name, back string) (Point, error) {
	n, err := parseBack(back)
	if err != nil {
		return Point{}, &FindError{name, err}
	}
	list, err := r.Points(n + 1)
	if err == nil && len(list) <= n {
		err = &FindError{name, fmt.Errorf("%w: there are %d", ErrNoPoint, len(list))}
	}
	if err != nil {
		return Point{}, err
	}
	return list[n], nil
}

// findHead returns the oldest checkpoint with the HEAD of the newest: what the files were when the commit was made, or
// checked out for the first time.
func (r *Repo) findHead() (found Point, err error) {
	var head object.ID
	err = r.EachPoint(func(p Point) bool {
		if found.ID == "" {
			head = p.Head
		}
		if p.Head == head {
			found = p
		}
		return true
	})
	if err == nil && found.ID == "" {
		err = &FindError{headName, ErrNoPoint}
	}
	return found, err
}

// findTime returns the newest checkpoint that is not younger than a time.
func (r *Repo) findTime(name string, at time.Time) (found Point, err error) {
	var oldest Point
	err = r.EachPoint(func(p Point) bool {
		if oldest = p; !p.ID.Time().After(at) {
			found = p
		}
		return found.ID == ""
	})
	switch {
	case err != nil || found.ID != "":
	case oldest.ID == "":
		err = &FindError{name, ErrNoPoint}
	default:
		err = &FindError{name, fmt.Errorf("%w: the oldest is of %s", ErrNoPoint, oldest.Time.Local().Format(time.DateTime))}
	}
	return found, err
}

func (r *Repo) findID(name string) (Point, error) {
	prefix := strings.ToUpper(name)
	if len(prefix) > idLen || !isDigits(prefix) {
		return Point{}, &FindError{name, ErrNoPoint}
	}
	var found []Point
	err := r.EachPoint(func(p Point) bool {
		if strings.HasPrefix(string(p.ID), prefix) && (len(found) == 0 || found[0].ID != p.ID) { // one may be in two lanes
			found = append(found, p)
		}
		return len(found) < 2 && string(p.ID) >= prefix // they come sorted
	})
	switch {
	case err != nil:
		return Point{}, fmt.Errorf("find checkpoint %.80q: %w", name, err)
	case len(found) == 0:
		return Point{}, &FindError{name, ErrNoPoint}
	case len(found) > 1:
		return Point{}, &FindError{name, ErrAmbiguous}
	}
	return found[0], nil
}

// parseBack reads what stands behind "@".
func parseBack(text string) (int, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "~"), 10, 31)
	if err != nil || text[0] != '~' {
		return 0, ErrNoPoint
	}
	return int(n), nil
}

// ageUnits are the units of ages.
var ageUnits = map[byte]time.Duration{'w': 7 * 24 * time.Hour, 'd': 24 * time.Hour, 'h': time.Hour, 'm': time.Minute, 's': time.Second}

// ParseTime returns the moment that a text means: an age (90s, 10m, 2h30m, 3d, 1w), a time of day (14:05, 14:05:30), which
// is yesterday's if today's has not come yet, a date, which means the end of that day, a date and a time, or RFC 3339.
// What names no time zone is of now's.
func ParseTime(text string, now time.Time) (time.Time, bool) {
	if age, ok := parseAge(text); ok {
		return now.Add(-age), true
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at, true
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04"} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return at, true
		}
	}
	if day, err := time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return day.AddDate(0, 0, 1).Add(-time.Nanosecond), true
	}
	for _, layout := range []string{"15:04", time.TimeOnly} {
		clock, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		y, m, d := now.Date()
		at := time.Date(y, m, d, clock.Hour(), clock.Minute(), clock.Second(), 0, now.Location())
		if at.After(now) {
			at = time.Date(y, m, d-1, clock.Hour(), clock.Minute(), clock.Second(), 0, now.Location())
		}
		return at, true
	}
	return time.Time{}, false
}

// parseAge reads numbers with units.
func parseAge(text string) (age time.Duration, ok bool) {
	for text != "" {
		digits := 0
		for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
			digits++
		}
		if digits == 0 || digits > 9 || digits == len(text) || text[0] == '0' || ageUnits[text[digits]] == 0 {
			return 0, false
		}
		n, err := strconv.Atoi(text[:digits])
		if err != nil || int64(n) > int64(maxAge/ageUnits[text[digits]]) {
			return 0, false
		}
		if age += time.Duration(n) * ageUnits[text[digits]]; age > maxAge {
			return 0, false
		}
		text, ok = text[digits+1:], true
	}
	return age, ok
}

// maxAge is the longest age that a name can have: a hundred years.
const maxAge = 100 * 365 * 24 * time.Hour

// errTaken says that a name means something else.
var errTaken = errors.New("it names a time, HEAD or a turn")

// ValidPin looks at a name for a pin: what names a checkpoint otherwise is none. Pins that are named so go on to be found.
func ValidPin(name string) error {
	if err := ValidName(name); err != nil {
		return err
	}
	if _, isTime := ParseTime(name, time.Now()); isTime || strings.EqualFold(name, headName) {
		return fmt.Errorf("%q cannot be the name of a pin: %w", name, errTaken)
	}
	return nil
}
