"""Other people's samplers: what their steps cost (`cost`), and how many effective draws a second they give."""
