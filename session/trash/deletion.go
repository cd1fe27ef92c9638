package trash

import "time"

// Deletion states which deletion of a session is meant. The zero value means the last one.
type Deletion struct {
	From   time.Time // the first deletion that is not before this time, in whole seconds, is meant; zero: the last one
	Before time.Time // but only if it is before this time; zero: in any case
}

// find returns the deletion of the session called name in the list all, in which the newest one is the first.
func (d Deletion) find(name string, all []Deleted) (found Deleted, ok bool) {
	for _, one := range all {
		switch at := one.At.Unix(); {
		case one.Session != name, !d.Before.IsZero() && at >= d.Before.Unix():
		case d.From.IsZero():
			return one, true
		case at >= d.From.Unix():
			found, ok = one, true
		}
	}
	return found, ok
}
