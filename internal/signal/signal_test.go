package signal

import "testing"

func TestChannelHoldsOneSignal(t *testing.T) {
	c := make(chan struct{}, 1)
	if Take(c) {
		t.Error("an empty channel has a signal")
	}
	Send(c)
	Send(c)
	if !Take(c) || Take(c) {
		t.Error("a channel does not have exactly one signal after two were sent")
	}
	close(c)
	for range 2 {
		if !Take(c) {
			t.Error("a closed channel has no signal")
		}
	}
}
