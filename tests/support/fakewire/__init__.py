"""What a fake engine says, in the formats of the three APIs: pure, from a request to bodies and events."""
