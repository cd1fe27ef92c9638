package acl

import (
	"bytes"
	"testing"
)

var (
	minimal  = List{{userObj, 6, 0}, {groupObj, 4, 0}, {other, 4, 0}}
	extended = List{{userObj, 7, 0}, {user, 7, 1000}, {groupObj, 5, 0}, {group, 6, 7}, {mask, 7, 0}, {other, 1, 0}}
)

func TestModes(t *testing.T) {
	if got := minimal.Mode(0o100777); got != 0o100644 || minimal.Extended() {
		t.Errorf("mode of %v: got %o, extended %v; want 100644, no", minimal, got, minimal.Extended())
	}
	if got := extended.Mode(0o102000); got != 0o102771 || !extended.Extended() {
		t.Errorf("mode of %v: got %o, extended %v; want 102771, yes", extended, got, extended.Extended())
	}
	changed := extended.WithMode(0o640)
	if got := changed.Mode(0); got != 0o640 || changed[2].perm != 5 || changed[1].perm != 7 || extended[4].perm != 7 {
		t.Errorf("list after chmod 640: %v; want the mask to be 4 and the group's and users' entries to stay", changed)
	}
	inherited, mode := extended.Inherit(0o100666)
	if mode != 0o100660 || inherited.Mode(0) != 0o660 || inherited[2].perm != 5 {
		t.Errorf("inherited with mode 666: %v, %o; want 660 in both", inherited, mode)
	}
	if inherited, mode := minimal.Inherit(0o040777); mode != 0o040644 || inherited.Extended() {
		t.Errorf("inherited from %v: %v, %o; want mode 644 alone", minimal, inherited, mode)
	}
}

func FuzzParse(f *testing.F) {
	for _, l := range []List{minimal, extended, {}} {
		f.Add(l.Bytes())
	}
	f.Add(extended.Bytes()[:21])
	f.Add([]byte{2, 0, 0, 0, 2, 0, 7, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, value []byte) {
		l, err := Parse(value)
		if err != nil {
			return
		}
		if got := l.Bytes(); !bytes.Equal(got, value) {
			t.Errorf("bytes of the list of %x: got %x", value, got)
		}
		if len(l) == 0 {
			return
		}
		inherited, mode := l.Inherit(0o100751)
		if got := inherited.Mode(0); got != mode&0o777 || mode&^uint32(0o100751) != 0 {
			t.Errorf("inherited list %v has mode %o, want that of the file: %o", inherited, got, mode)
		}
	})
}
