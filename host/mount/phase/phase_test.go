package phase

import (
	"testing"
	"testing/synctest"

	"github.com/artifactfs/artifactfs/control"
)

func TestAbortedMountIsNotServed(t *testing.T) {
	cancelled := false
	p := New(func() { cancelled = true })
	if !p.Abort() || !cancelled {
		t.Fatal("the preparation was not cancelled")
	}
	begun := p.Serve(control.MountReply{}, func() {}, func() { t.Error("the background work has begun") })
	if begun || p.Served() {
		t.Error("the mount is served")
	}
}

func TestServedMountIsNotAborted(t *testing.T) {
	p := New(func() { t.Error("the start was cancelled") })
	if !p.Serve(control.MountReply{ID: "a"}, func() {}, func() {}) || !p.Served() || p.Reply().ID != "a" {
		t.Fatal("the mount is not served")
	}
	<-p.Started()
	if p.Abort() {
		t.Error("the mount was aborted")
	}
}

func TestOnlyTheFirstCallEndsTheMount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, cancels := New(nil), 0
		p.Serve(control.MountReply{}, func() { cancels++ }, func() {})
		if !p.End() || !p.Ending() || p.IsGone() {
			t.Fatal("the mount is not ending")
		}
		returned := false
		go func() {
			if p.End() {
				t.Error("the mount was ended twice")
			}
			returned = true
		}()
		synctest.Wait()
		if returned {
			t.Error("the second call has not waited for the end")
		}
		p.Close()
		synctest.Wait()
		if !returned || !p.IsGone() || cancels != 1 {
			t.Errorf("returned %v, gone %v, background work ended %d times", returned, p.IsGone(), cancels)
		}
	})
}
