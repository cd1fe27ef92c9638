package fuse

import "testing"

func TestProbe(t *testing.T) {
	k, err := Probe(t.TempDir())
	if err != nil {
		t.Skip(err)
	}
	t.Log(k)
	if k.Major != 7 || k.Minor < 9 {
		t.Errorf("FUSE protocol version %+v, want 7.9 or newer", k)
	}
}
